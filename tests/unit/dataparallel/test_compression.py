# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Compressors on NumPy arrays and torch tensors (specification, section 6.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import smdistributed.dataparallel.torch.casts  # noqa: F401 -- for its effect
from smdistributed.dataparallel.compression import (
    Compression,
    FP16Compression,
    NoneCompression,
    resolve_compression,
)
from smdistributed.dataparallel.exceptions import SMDDPUnsupported


def arrays() -> list[tuple[Any, bool]]:
    """(tensor, whether it is compressed)."""
    numpy_dtypes = {"f4": True, "f8": True, "f2": False, "i4": False, "u1": False, "?": False}
    torch_dtypes = {
        torch.float32: True,
        torch.float64: True,
        torch.bfloat16: True,
        torch.float16: False,
        torch.int64: False,
        torch.bool: False,
        torch.complex64: False,
    }
    return [
        *((np.array([1, 0, 2]).astype(dtype), wide) for dtype, wide in numpy_dtypes.items()),
        *((torch.tensor([1, 0, 2]).to(dtype), wide) for dtype, wide in torch_dtypes.items()),
        (np.float32(1.5), True),
    ]


@pytest.mark.parametrize(("tensor", "_wide"), arrays())
def test_none_is_the_identity(tensor: Any, _wide: bool) -> None:
    sent, context = Compression.none.compress(tensor)
    assert sent is tensor
    assert Compression.none.decompress(sent, context) is tensor


@pytest.mark.parametrize(("tensor", "wide"), arrays())
def test_fp16_halves_wide_floats_and_leaves_the_rest(tensor: Any, wide: bool) -> None:
    sent, context = Compression.fp16.compress(tensor)
    if wide:
        assert str(sent.dtype).endswith("float16")
        assert "bfloat16" not in str(sent.dtype)
    else:
        assert sent is tensor
    back = Compression.fp16.decompress(sent, context)
    assert type(back) is type(tensor)
    assert back.dtype == tensor.dtype
    assert (back == tensor).all()


def test_the_aliases_are_the_classes() -> None:
    assert Compression.none is NoneCompression
    assert Compression.fp16 is FP16Compression


class Loud(FP16Compression):
    """A user's own, which doubles what it sends."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        sent, context = FP16Compression.compress(tensor)
        return sent * 2, context


class FromNothing:
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


@pytest.mark.parametrize(
    "compression",
    [Compression.none, Compression.fp16, FP16Compression, Loud, FromNothing, FromNothing()],
)
def test_members_classes_and_the_users_own_are_accepted(compression: Any) -> None:
    assert resolve_compression(compression) is compression


def test_a_users_subclass_works() -> None:
    sent, context = resolve_compression(Loud).compress(np.ones(2, "f4"))
    assert sent.tolist() == [2, 2]
    assert Loud.decompress(sent, context).dtype == np.float32


@pytest.mark.parametrize("compression", ["fp16", 16, None, Compression, object, np.float16])
def test_anything_else_is_a_value_error(compression: Any) -> None:
    with pytest.raises(ValueError, match=r"expected Compression\.none, Compression\.fp16"):
        resolve_compression(compression)


@pytest.mark.parametrize("tensor", [1.0, [1.0], "text"])
def test_types_that_nobody_registered(tensor: Any) -> None:
    with pytest.raises(SMDDPUnsupported, match="Import that module first"):
        Compression.fp16.compress(tensor)
    with pytest.raises(SMDDPUnsupported, match="Import that module first"):
        Compression.fp16.decompress(tensor, "float32")
