# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How an operation is cut into the pieces that pass through host memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smdistributed.dataparallel.torch.cuda.chunks import Layout, pieces
from smdistributed.dataparallel.torch.operation import Operation

SIZE = 3  # ranks


def _operation(kind: str, inputs: list[Tensor], outputs: list[Tensor]) -> Operation:
    return Operation(kind, inputs, outputs, (*inputs, *outputs)[0].dtype)


def _counts(tensors: object) -> list[int]:
    return [tensor.numel() for tensor in tensors]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("count", "dtype", "chunk_bytes", "expected"),
    [
        (0, torch.float32, 1024, [0]),  # the ranks still meet
        (1, torch.float32, 1024, [1]),
        (256, torch.float32, 1024, [256]),
        (257, torch.float32, 1024, [256, 1]),
        (600, torch.float64, 1024, [128, 128, 128, 128, 88]),
        (600, torch.float16, 1024, [512, 88]),
        (130, torch.uint8, 1, [64, 64, 2]),  # never less than a unit
        (300, torch.float32, 1023, [192, 108]),  # whole units
    ],
)
def test_in_place_kinds_are_cut_into_consecutive_elements(
    count: int, dtype: torch.dtype, chunk_bytes: int, expected: list[int]
) -> None:
    buffer = torch.arange(count).to(dtype)
    cut = list(pieces(_operation("all_reduce", [buffer], [buffer]), SIZE, chunk_bytes))
    assert [piece.inputs[0].numel() for piece in cut] == expected
    assert torch.equal(torch.cat([piece.inputs[0] for piece in cut]), buffer)
    for piece in cut:
        assert piece.inputs[0].data_ptr() == piece.outputs[0].data_ptr()


def test_a_rank_that_only_reads_or_only_writes_is_cut_like_the_others() -> None:
    buffer = torch.arange(300.0)
    root = list(pieces(_operation("broadcast", [buffer], []), SIZE, 512))
    other = list(pieces(_operation("broadcast", [], [buffer]), SIZE, 512))
    assert [_counts(p.inputs) for p in root] == [_counts(p.outputs) for p in other]
    assert all(not p.outputs for p in root)
    assert all(not p.inputs for p in other)


def test_a_dense_tensor_is_cut_in_storage_order() -> None:
    image = (
        torch.arange(2 * 3 * 4 * 5.0)
        .view(2, 4, 5, 3)
        .permute(0, 3, 1, 2)[:, :, 1:2]
        .contiguous(memory_format=torch.channels_last)
    )
    (piece,) = pieces(_operation("all_reduce", [image], [image]), SIZE, 1 << 20)
    assert torch.equal(piece.inputs[0], image.permute(0, 2, 3, 1).reshape(-1))


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_shares_are_cut_by_the_same_range(kind: str, single: bool) -> None:
    share = torch.arange(100.0)
    whole = torch.arange(300.0)
    shares = [whole] if single else list(whole.split(100))
    name = f"{kind}_single" if single else kind
    gathering = kind == "all_gather"
    inputs, outputs = ([share], shares) if gathering else (shares, [share])
    # 4 buffers of 64 float32 and their alignment
    cut = list(pieces(_operation(name, inputs, outputs), SIZE, 4 * (64 * 4 + 128)))
    assert [piece.kind for piece in cut] == [kind] * 2
    ours, theirs = ("inputs", "outputs") if gathering else ("outputs", "inputs")
    assert [_counts(getattr(p, ours)) for p in cut] == [[64], [36]]
    assert [_counts(getattr(p, theirs)) for p in cut] == [[64] * 3, [36] * 3]
    for rank in range(SIZE):
        parts = torch.cat([getattr(p, theirs)[rank] for p in cut])
        assert torch.equal(parts, whole[100 * rank : 100 * (rank + 1)])


def test_uneven_shares_run_out_one_after_the_other() -> None:
    outputs = [torch.empty(n) for n in (0, 65, 130)]
    operation = _operation("all_gather", [outputs[1]], outputs)
    cut = list(pieces(operation, SIZE, 4 * (64 * 4 + 128)))
    assert [_counts(p.outputs) for p in cut] == [[0, 64, 64], [0, 1, 64], [0, 0, 2]]
    assert [_counts(p.inputs) for p in cut] == [[64], [1], [0]]


@pytest.mark.parametrize("kind", ["all_to_all", "gather", "scatter", "send", "recv"])
def test_what_no_rank_can_count_alike_stays_whole(kind: str) -> None:
    tensors = [torch.empty(1000), torch.empty(3)]
    (piece,) = pieces(_operation(kind, tensors, tensors), SIZE, 64)
    assert (piece.kind, _counts(piece.inputs)) == (kind, [1000, 3])


def test_layout_puts_in_place_buffers_in_one_place_and_others_apart() -> None:
    a, b = torch.arange(10.0), torch.arange(40.0)
    in_place = Layout(_operation("all_reduce", [a], [a]))
    assert in_place.size_bytes == 128
    on_host = in_place.on_host(torch.empty(128, dtype=torch.uint8))
    assert on_host.inputs[0].data_ptr() == on_host.outputs[0].data_ptr()
    apart = Layout(_operation("all_to_all", [a, b], [b, a]))
    assert apart.size_bytes == 2 * (128 + 256)
    memory = torch.empty(apart.size_bytes, dtype=torch.uint8)
    on_host = apart.on_host(memory)
    offsets = [t.data_ptr() - memory.data_ptr() for t in (*on_host.inputs, *on_host.outputs)]
    assert offsets == [0, 128, 384, 640]
    assert _counts(on_host.inputs) == [10, 40]
    assert on_host.inputs[0].dtype == torch.float32


def test_pieces_fit_the_chunk() -> None:
    whole = torch.empty(1 << 20)
    share = torch.empty((1 << 20) // 8)
    for chunk_bytes in (16 << 10, 4 << 20):
        for kind, inputs, outputs in (
            ("all_reduce", [whole], [whole]),
            ("all_gather_single", [share], [whole]),
            ("reduce_scatter_single", [whole], [share]),
        ):
            for piece in pieces(_operation(kind, inputs, outputs), 8, chunk_bytes):
                assert Layout(piece).size_bytes <= chunk_bytes
