# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which devices are mapped, and which functions are covered."""

from typing import Any

import pytest
import torch
from torch.utils import _device

from smdistributed.dataparallel.torch.shims import mapping
from smdistributed.dataparallel.torch.shims.mapping import on_cpu

CPU = torch.device("cpu")

# Makers of tensors for a given device that training scripts do not call on one.
LEFT_OUT = {
    torch.empty_quantized,
    torch.fft.fftfreq,
    torch.fft.rfftfreq,
    torch.nested.nested_tensor,
    torch.sparse_bsc_tensor,
    torch.sparse_bsr_tensor,
    torch.sparse_compressed_tensor,
    torch.sparse_csc_tensor,
}


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:0", "cuda:12", "0", 0, 7, torch.device("cuda"), torch.device("cuda:1")]
)
def test_cuda_becomes_the_cpu(device: Any) -> None:
    assert on_cpu(device) == CPU


@pytest.mark.parametrize(
    "other",
    ["cpu", "meta", "cudax", "xpu:1", torch.device("meta"), CPU, torch.float16, None, True, 1.5],
)
def test_anything_else_stays_as_it_is(other: Any) -> None:
    assert on_cpu(other) is other


def test_a_tensor_stays_as_it_is() -> None:
    tensor = torch.ones(1)
    assert on_cpu(tensor) is tensor


def test_what_torch_lists_as_makers_of_tensors_is_covered_or_left_out_on_purpose() -> None:
    """Torch keeps the list for `torch.set_default_device`; a new entry is a decision here."""
    covered = {getattr(torch, name) for name in mapping._FACTORIES}
    assert _device._device_constructors() - covered == LEFT_OUT


@pytest.mark.parametrize(
    ("names", "owner"),
    [
        (mapping._FACTORIES, torch),
        (mapping._METHODS, torch.Tensor),
        (mapping._TENSOR_TYPES, torch.cuda),
        (mapping._TENSOR_TYPES, torch),
    ],
)
def test_torch_still_has_every_name(names: tuple[str, ...], owner: Any) -> None:
    assert [name for name in names if not hasattr(owner, name)] == []
