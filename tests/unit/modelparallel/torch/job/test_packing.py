# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects as bytes and back: what tensors keep, and that their bytes stay out of the pickle."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from smdistributed.modelparallel.torch.job.packing import LARGE_BYTES, Packed, pack, unpack

CPU = torch.device("cpu")


def travelled(obj: Any, device: torch.device = CPU) -> Any:
    """The object after its journey, through memory that is not the sender's."""
    packed = pack(obj)
    return unpack(
        Packed(packed.stream.clone(), tuple(block.clone() for block in packed.blocks)), device
    )


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count) % 13 - 6).to(dtype).reshape(shape)


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.uint16,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_small_and_large(dtype: torch.dtype) -> None:
    for count in (1, 7, LARGE_BYTES):
        sent = numbered(count, dtype=dtype)
        received = travelled(sent)
        assert received.dtype == dtype
        assert torch.equal(received.view(torch.uint8), sent.view(torch.uint8))


SHAPES = {
    "0 dimensions": torch.tensor(3.5),
    "empty": torch.empty(0),
    "empty with a shape": torch.empty(3, 0, 2, dtype=torch.int64),
    "with holes": numbered(64, 1024)[::2, ::3],
    "transposed": numbered(300, 400).t(),
    "expanded": numbered(1, 400).expand(300, 400),
    "channels last": numbered(4, 8, 32, 32).to(memory_format=torch.channels_last),
    "an offset into a storage": numbered(30000)[100:],
    "conjugated": numbered(100, dtype=torch.complex64).conj(),
    "a negated view": torch.complex(torch.zeros(9), numbered(9)).conj().imag,
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_view_arrives_with_its_values(name: str) -> None:
    sent = SHAPES[name]
    received = travelled({"tensor": sent})["tensor"]
    assert received.shape == sent.shape
    assert received.dtype == sent.dtype
    assert torch.equal(received, sent)
    received.fill_(1)  # and can be written to


def test_large_memory_is_not_copied_into_the_pickle() -> None:
    large, array = numbered(1_000_000), np.arange(100_000.0)
    packed = pack({"tensor": large, "array": array, "small": numbered(10)})
    assert [block.numel() for block in packed.blocks] == [large.nbytes, array.nbytes]
    assert packed.blocks[0].data_ptr() == large.data_ptr(), "no copy at the sender either"
    assert packed.stream.numel() < 2000


def test_a_view_does_not_take_its_storage_along() -> None:
    packed = pack(numbered(1_000_000)[:5])
    assert packed.blocks == ()
    assert packed.stream.numel() < 1000


def test_the_threshold() -> None:
    assert len(pack(torch.zeros(LARGE_BYTES - 1, dtype=torch.uint8)).blocks) == 0
    assert len(pack(torch.zeros(LARGE_BYTES, dtype=torch.uint8)).blocks) == 1


def test_arrays_also_those_that_are_read_only() -> None:
    array = np.arange(50_000.0)
    array.flags.writeable = False
    received = travelled([array, array[::2], np.float32(3)])
    assert np.array_equal(received[0], array)
    assert np.array_equal(received[1], array[::2])
    assert received[2] == 3


def test_a_tensor_that_occurs_twice_stays_one() -> None:
    tensor = numbered(3)
    first, second = travelled([tensor, tensor])
    assert first is second


def test_gradients_leaves_keep_the_wish_for_one_results_do_not() -> None:
    leaf = numbered(3).requires_grad_()
    received, result = travelled([leaf, leaf * 2])
    assert received.requires_grad
    assert received.is_leaf
    assert not result.requires_grad
    assert torch.equal(result, leaf.detach() * 2)


def test_attributes_of_a_tensor() -> None:
    tensor = numbered(3)
    tensor.note = {"axis": 1}  # type: ignore[attr-defined]
    assert travelled(tensor).note == {"axis": 1}


def test_parameters_modules_and_state_dicts() -> None:
    module = nn.Sequential(nn.Linear(200, 300), nn.BatchNorm1d(300))
    module[0].bias.requires_grad_(False)
    received = travelled(module)
    assert isinstance(received[0].weight, nn.Parameter)
    assert not received[0].bias.requires_grad
    for name, value in module.state_dict().items():
        assert torch.equal(received.state_dict()[name], value)
    assert isinstance(travelled(module.state_dict()), collections.OrderedDict)


def test_kinds_of_tensors_that_torch_pickles() -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(travelled(sparse).to_dense(), torch.eye(3))
    meta = travelled(torch.empty(3, device="meta"))
    assert meta.is_meta


def test_what_was_on_an_accelerator_goes_to_the_receivers_device() -> None:
    from smdistributed.modelparallel.torch.job import packing

    raw = numbered(3).view(torch.uint8).numpy()
    for was_there, expected in ((True, "meta"), (False, "cpu")):
        restored = packing._restore(
            raw, torch.float32, (3,), was_there, False, None, device=torch.device("meta")
        )
        assert restored.device.type == expected


def test_a_default_device_of_the_script_changes_nothing() -> None:
    sent = numbered(20_000)
    with torch.device("meta"):
        received = travelled([sent, sent[:3]])
    assert [tensor.device for tensor in received] == [CPU, CPU]
    assert torch.equal(received[0], sent)


@dataclasses.dataclass
class Record:
    name: str
    values: list[Tensor]
    weights: np.ndarray[Any, Any]


def test_any_other_object() -> None:
    record = Record("a", [numbered(3), numbered(20_000)], np.arange(9))
    received = travelled((record, {1, 2}, None, b"x" * 100_000, torch.float16, range(3)))
    assert received[0].name == "a"
    assert all(map(torch.equal, received[0].values, record.values))
    assert received[1:] == ({1, 2}, None, b"x" * 100_000, torch.float16, range(3))


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("never")


class Trap:
    """Pickles, and raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.parametrize(
    ("obj", "type_name", "reason"),
    [
        ({"lock": threading.Lock()}, "dict", "lock"),
        (lambda: 0, "function", "lambda"),
        (Stubborn(), r"\S*test_packing.Stubborn", "RuntimeError: never"),
    ],
)
def test_what_does_not_pickle_is_named(obj: Any, type_name: str, reason: str) -> None:
    with pytest.raises(TypeError, match=f"of type {type_name} does not pickle .*{reason}"):
        pack(obj)


def test_what_does_not_unpickle_says_why() -> None:
    with pytest.raises(TypeError, match=r"does not unpickle here .*no number"):
        travelled(Trap())
