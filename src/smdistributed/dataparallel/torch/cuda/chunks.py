# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An operation on device tensors -> the pieces that pass through host memory one after the other.

A *piece* is an operation of its own: its inputs and outputs are views of the device tensors, few
enough that all of them fit into one slot of host memory. All ranks cut alike, because what decides
(sizes, dtype, number of ranks) is the same on all of them.

| Kind | Pieces |
| --- | --- |
| all_reduce, reduce, broadcast | consecutive elements |
| all_gather, reduce_scatter (both forms) | the same range of every rank's share |
| all_to_all, gather, scatter, send, recv | one: no rank knows all sizes, so none could count |

Cost for S bytes in and T bytes out of a rank: S and T bytes over the bus, and the engine's cost of
the operation on host memory. The two directions and the engine overlap (`pipeline.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from smdistributed.dataparallel.torch.operation import IN_PLACE, Operation

__all__ = ["Layout", "pieces"]

# The engine reduces fastest from cache lines; two of them, as its own buffers.
_ALIGNMENT_BYTES = 128
_UNIT = 64  # elements; pieces start at multiples of it

_AS_LISTS = {
    "all_gather_single": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


def pieces(operation: Operation, size: int, chunk_bytes: int) -> Iterator[Operation]:
    """Cut an operation; at least one piece, since an empty one is still a meeting of the ranks.

    Args:
        operation: on contiguous (or, for `IN_PLACE` kinds, dense) device tensors.
        size: number of ranks in the group.
        chunk_bytes: host memory for all inputs and outputs of one piece.
    """
    if operation.kind in IN_PLACE:
        return _pieces_in_place(operation, chunk_bytes)
    kind = _AS_LISTS.get(operation.kind, operation.kind)
    inputs = [_flat(tensor) for tensor in operation.inputs]
    outputs = [_flat(tensor) for tensor in operation.outputs]
    if operation.kind == "all_gather_single":
        outputs = list(outputs[0].view(size, -1))
    elif operation.kind == "reduce_scatter_single":
        inputs = list(inputs[0].view(size, -1))
    elif operation.kind == "all_to_all_single":
        inputs = list(inputs[0].split_with_sizes(operation.input_counts))
        outputs = list(outputs[0].split_with_sizes(operation.output_counts))
    whole = dataclasses.replace(
        operation,
        kind=kind,
        inputs=inputs,
        outputs=outputs,
        copies=(),
        input_counts=(),
        output_counts=(),
    )
    if kind in ("all_gather", "reduce_scatter"):
        return _pieces_by_range(whole, chunk_bytes)
    return iter([whole])


def _pieces_in_place(operation: Operation, chunk_bytes: int) -> Iterator[Operation]:
    buffer = _flat((operation.inputs or operation.outputs)[0])
    for chunk in torch.split(buffer, _unit_multiple(chunk_bytes // operation.dtype.itemsize)):
        yield dataclasses.replace(
            operation,
            inputs=(chunk,) if operation.inputs else (),
            outputs=(chunk,) if operation.outputs else (),
        )


def _pieces_by_range(operation: Operation, chunk_bytes: int) -> Iterator[Operation]:
    inputs, outputs = operation.inputs, operation.outputs
    buffers = len(inputs) + len(outputs)
    room_bytes = chunk_bytes // buffers - _ALIGNMENT_BYTES
    step = _unit_multiple(room_bytes // operation.dtype.itemsize)
    longest = max(tensor.numel() for tensor in (*inputs, *outputs))
    for start in range(0, max(longest, 1), step):
        yield dataclasses.replace(
            operation,
            inputs=[tensor[start : start + step] for tensor in inputs],
            outputs=[tensor[start : start + step] for tensor in outputs],
        )


def _unit_multiple(count: int) -> int:
    return max(count // _UNIT, 1) * _UNIT


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in storage order."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


class Layout:
    """Where the inputs and outputs of a piece lie in host memory.

    Those of `IN_PLACE` kinds lie in the same place, as on the device.

    Args:
        piece: what `pieces` yielded.
    """

    def __init__(self, piece: Operation) -> None:
        self._piece = piece
        self._inputs, end = _offsets(piece.inputs, 0)
        start = 0 if piece.kind in IN_PLACE else end
        self._outputs, outputs_end = _offsets(piece.outputs, start)
        self.size_bytes = max(end, outputs_end)

    def on_host(self, memory: Tensor) -> Operation:
        """The same operation on host memory: uint8, at least `size_bytes`."""
        piece = self._piece
        return dataclasses.replace(
            piece,
            inputs=_views(memory, piece.inputs, self._inputs),
            outputs=_views(memory, piece.outputs, self._outputs),
        )


def _offsets(tensors: Sequence[Tensor], start: int) -> tuple[list[int], int]:
    offsets = []
    for tensor in tensors:
        offsets.append(start)
        nbytes = tensor.numel() * tensor.element_size()
        start += -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, start


def _views(memory: Tensor, tensors: Sequence[Tensor], offsets: Sequence[int]) -> list[Tensor]:
    return [
        memory[offset : offset + tensor.numel() * tensor.element_size()].view(tensor.dtype)
        for tensor, offset in zip(tensors, offsets, strict=True)
    ]
