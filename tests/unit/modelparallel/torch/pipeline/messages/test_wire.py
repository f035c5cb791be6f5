# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages as bytes, and back."""

import ctypes
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from smdistributed.modelparallel.torch.pipeline.messages.wire import Letter, pack, unpack

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.uint16,
]


class Message(bytearray):
    """As a channel delivers it: each segment from a multiple of 64 on."""

    header = b""
    source = 5
    nbytes = 0


def delivered(*args: Any, **kwargs: Any) -> Message:
    header, segments, _ = pack(*args, **kwargs)
    message = Message()
    for address, nbytes in segments:
        if nbytes:
            message.extend(b"\0" * (-len(message) % 64))
            message.extend(ctypes.string_at(address, nbytes))
    message.header = header
    message.nbytes = len(message)
    return message


def sent(*args: Any, **kwargs: Any) -> Letter:
    return unpack(delivered(*args, **kwargs))


def test_a_message_without_tensors() -> None:
    letter = sent(9, 7, [1, -2, 1 << 62], (), b"pickle")
    assert letter == (9, 7, 5, (1, -2, 1 << 62), [], b"pickle")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5)])
def test_tensors_arrive_as_they_are(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = max(1, torch.Size(shape).numel())
    tensor = torch.arange(count).remainder(2).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    (came,) = sent(2, 1, [], [tensor]).tensors
    assert came is not None
    assert (came.dtype, came.shape, came._is_view()) == (dtype, tensor.shape, False)
    assert torch.equal(came.to(torch.complex128), tensor.to(torch.complex128))


def test_several_tensors_and_none() -> None:
    tensors = [torch.arange(3.0), None, torch.zeros(0), torch.arange(17, dtype=torch.uint8)]
    came = sent(7, 1, [4], tensors).tensors
    assert came[1] is None
    for one, other in zip(came, tensors, strict=True):
        assert one is None or torch.equal(one, other)


def test_whether_gradients_are_wanted_travels() -> None:
    tensors = [torch.zeros(2, requires_grad=True), torch.zeros(2)]
    came = sent(0, 1, [], tensors).tensors
    assert [t.requires_grad for t in came if t is not None] == [True, False]
    assert all(t.is_leaf for t in came if t is not None)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.zeros(1).expand(4, 3),
        torch.ones(2, 2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,
    ],
    ids=["transposed", "strided", "expanded", "conjugate", "negative"],
)
def test_tensors_that_are_not_contiguous(tensor: Tensor) -> None:
    (came,) = sent(2, 1, [], [tensor]).tensors
    assert came is not None
    assert came.is_contiguous()
    assert torch.equal(came, tensor)


def test_channels_last_stays() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (came,) = sent(2, 1, [], [tensor]).tensors
    assert came is not None
    assert came.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(came, tensor)


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.zeros(2, device="meta")])
def test_what_cannot_travel_says_so(tensor: Tensor) -> None:
    with pytest.raises((TypeError, NotImplementedError)):
        sent(2, 1, [], [tensor])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20),
    st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5),
    st.binary(max_size=50),
)
def test_any_message_arrives(ints: list[int], shapes: list[list[int]], pickled: bytes) -> None:
    tensors = [torch.randn(shape) for shape in shapes]
    letter = sent(0, 3, ints, tensors, pickled)
    assert letter.ints == tuple(ints)
    assert letter.pickled == pickled
    for one, other in zip(letter.tensors, tensors, strict=True):
        assert one is not None
        assert torch.equal(one, other)


def test_a_small_tensor_does_not_keep_the_large_one_it_came_with() -> None:
    """Up to 2.0.0 a script that kept its losses kept all that its steps had returned."""
    message = delivered(1, 1, [], [torch.ones(1 << 20), torch.tensor(3.0)])
    alive = weakref.ref(message)
    loss = unpack(message).tensors[1]
    del message
    assert float(loss) == 3.0  # type: ignore[arg-type]
    assert alive() is None
    first, second = sent(1, 1, [], [torch.ones(2), torch.ones(2)]).tensors
    assert first is not None
    assert second is not None
    assert float(first.sum() + second.sum()) == 4.0


META = torch.device("meta")  # stands for a GPU


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)])
def test_tensors_go_where_they_were(shape: tuple[int, ...]) -> None:
    """Up to 2.0.0 sizes of a PackedSequence, which torch wants on the CPU, arrived on the GPU."""
    tensors = [torch.ones(1000), torch.ones(shape, requires_grad=True)]
    from_a_rank_without_gpu = unpack(delivered(1, 1, [], tensors), META)
    assert [each.device for each in from_a_rank_without_gpu.tensors if each is not None] == [
        META
    ] * 2

    on_purpose = unpack(delivered(1, 1, [], tensors, device=META), META).tensors[1]
    assert on_purpose is not None
    assert on_purpose.is_cpu
    assert on_purpose.requires_grad
    assert torch.equal(on_purpose, tensors[1])
    to_a_rank_without_gpu = unpack(delivered(1, 1, [], tensors, device=META)).tensors[1]
    assert to_a_rank_without_gpu is not None
    assert torch.equal(to_a_rank_without_gpu, tensors[1])
