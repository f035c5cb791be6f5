# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`Compression`, one test for each statement about it, on torch tensors.

Source: dataparallel specification, section 6.4.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_ranks

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- all that a script imports
from smdistributed.dataparallel.compression import (
    Compression,
    FP16Compression,
    NoneCompression,
    resolve_compression,
)

WIDE = (torch.float32, torch.float64, torch.bfloat16)
UNTOUCHED = (torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float16)
MEMBERS = {"none": Compression.none, "fp16": Compression.fp16}


class Doubling(FP16Compression):
    """A user's own: doubles what is sent, on top of the cast."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        sent, ctx = FP16Compression.compress(tensor)
        return sent * 2, ctx

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return FP16Compression.decompress(tensor / 2, ctx)


def compressed(rank: int, world_size: int) -> str:
    """In a process of its own, into which no other test has imported anything."""
    return str(Compression.fp16.compress(torch.ones(2))[0].dtype)


def test_the_import_of_the_backend_is_enough_for_torchs_tensors() -> None:
    """`Compression` once refused them unless the legacy module had been imported too."""
    assert run_ranks(compressed, 1) == ["torch.float16"]


def test_the_alias_classes_are_the_members() -> None:
    assert resolve_compression(Compression.none) is resolve_compression(NoneCompression)
    assert resolve_compression(Compression.fp16) is resolve_compression(FP16Compression)
    assert resolve_compression(Compression.none) is not resolve_compression(Compression.fp16)


@pytest.mark.parametrize("dtype", WIDE + UNTOUCHED)
def test_none_is_the_identity(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1]).to(dtype)
    sent, ctx = Compression.none.compress(tensor)
    assert sent is tensor
    assert Compression.none.decompress(sent, ctx) is tensor


@pytest.mark.parametrize("dtype", WIDE)
def test_fp16_sends_wide_floats_as_fp16_and_restores_their_dtype(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.5, -2.0, 0.25], dtype=dtype)
    sent, ctx = Compression.fp16.compress(tensor)
    assert sent.dtype == torch.float16
    assert sent.tolist() == [1.5, -2.0, 0.25]
    restored = Compression.fp16.decompress(sent, ctx)
    assert restored.dtype == dtype
    assert restored.tolist() == [1.5, -2.0, 0.25]


def test_fp16_keeps_what_fp16_can_hold() -> None:
    third = torch.tensor([1 / 3])
    restored = Compression.fp16.decompress(*Compression.fp16.compress(third))
    assert restored.item() == third.half().item() != third.item()


@pytest.mark.parametrize("dtype", UNTOUCHED)
def test_fp16_leaves_integers_bools_and_fp16_untouched(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1]).to(dtype)
    sent, ctx = Compression.fp16.compress(tensor)
    assert sent is tensor
    assert Compression.fp16.decompress(sent, ctx) is tensor


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("method", ["compress", "decompress"])
def test_both_methods_are_static(name: str, method: str) -> None:
    assert isinstance(vars(MEMBERS[name])[method], staticmethod)


def test_user_defined_subclasses_work() -> None:
    compressor = resolve_compression(Doubling)
    sent, ctx = compressor.compress(torch.tensor([3.0]))
    assert (sent.dtype, sent.item()) == (torch.float16, 6.0)
    restored = compressor.decompress(sent, ctx)
    assert (restored.dtype, restored.item()) == (torch.float32, 3.0)


@pytest.mark.parametrize("name", MEMBERS)
def test_an_attribute_and_its_class_and_an_instance_are_accepted(name: str) -> None:
    for accepted in (getattr(Compression, name), MEMBERS[name], MEMBERS[name]()):
        assert resolve_compression(accepted) is accepted


@pytest.mark.parametrize("unknown", ["fp16", None, 16, torch.float16, Compression, object()])
def test_an_unknown_value_is_a_value_error(unknown: Any) -> None:
    with pytest.raises(ValueError, match=r"compression=.* is unknown; expected Compression\.none"):
        resolve_compression(unknown)
