# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors of an optimizer, made fit for kernels that read and write memory in its order.

Two sizes, both in elements:

    batch   whole tensors, what an update needs at a time: bounds its working memory
    piece   a flat part of a tensor. The operations of an update follow one another on pieces that
            stay in cache, instead of each going through all the memory (CPU only)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["Columns", "Scratch", "arithmetic_dtype", "empty_like_work", "in_batches", "in_pieces"]

Columns: TypeAlias = Sequence[Sequence[Tensor]]
"""Parameters, gradients, states: in each, the one of a parameter at the same place."""

# Of float32 a piece is 1 MB in each column, and six columns are in use.
_PIECE = 1 << 18
_BATCH = {"cpu": 1 << 22, "cuda": 1 << 26}


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """What parameters of a dtype are computed with, and what their states are: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def empty_like_work(parameter: Tensor) -> Tensor:
    """Memory for a state of a parameter: in the order of its own, if that has no gaps."""
    return torch.empty_strided(
        parameter.shape,
        _strides(parameter),
        dtype=arithmetic_dtype(parameter.dtype),
        device=parameter.device,
    )


class Scratch:
    """Working memory that is kept: new memory of the size of a batch costs as much as its update.

    It grows to the largest batch, which is that of the largest parameter or of some 16 MB. On GPUs
    torch keeps it.
    """

    def __init__(self) -> None:
        self._memory: dict[torch.dtype, Tensor] = {}

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        """A copy begins without memory."""
        return Scratch, ()

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Memory for as many tensors of a batch, in their order; until the next call."""
        first = tensors[0]
        if first.device.type != "cpu":
            return [torch.empty_like(each) for each in tensors]
        size = sum(each.numel() for each in tensors)
        memory = self._memory.get(first.dtype)
        if memory is None or memory.numel() < size:
            memory = self._memory[first.dtype] = torch.empty(size, dtype=first.dtype)
        made: list[Tensor] = []
        begin = 0
        for each in tensors:
            made.append(memory.as_strided(each.shape, each.stride(), begin))
            begin += each.numel()
        return made


def in_batches(columns: Columns) -> Iterator[tuple[range, list[list[Tensor]]]]:
    """Batches of tensors that kernels can work on, with the places they have in the columns.

    In a batch, tensors of a place have one dtype and one order in memory, without gaps. What is not
    so is copied, and copied back when the next batch is asked for, but for gradients, the second
    column.

    Args:
        columns: parameters first; all on one device, of one dtype to compute with. Without empty
            tensors.
    """
    parameters = columns[0]
    for places in _batches(parameters):
        strides = [_strides(parameters[place]) for place in places]
        dtype = arithmetic_dtype(parameters[places[0]].dtype)
        work = [
            [
                _fitting(column[place], dtype, wanted)
                for place, wanted in zip(places, strides, strict=True)
            ]
            for column in columns
        ]
        yield places, work
        for number, (column, worked_on) in enumerate(zip(columns, work, strict=True)):
            copied = [
                (column[place], copy)
                for place, copy in zip(places, worked_on, strict=True)
                if copy is not column[place]
            ]
            if copied and number != 1:
                torch._foreach_copy_([each for each, _ in copied], [copy for _, copy in copied])


def _batches(parameters: Sequence[Tensor]) -> Iterator[range]:
    """Places that follow one another, of as many tensors as a batch may have, one at least."""
    if not parameters:
        return
    limit = _BATCH.get(parameters[0].device.type, _BATCH["cuda"])
    first, size = 0, 0
    for place, parameter in enumerate(parameters):
        if size and size + parameter.numel() > limit:
            yield range(first, place)
            first, size = place, 0
        size += parameter.numel()
    yield range(first, len(parameters))


def in_pieces(columns: Columns) -> Iterator[tuple[list[int], list[tuple[Tensor, ...]]]]:
    """Columns of pieces, as many as stay in cache; and of which tensors these are.

    Args:
        columns: of one batch.
    """
    if columns[0][0].device.type != "cpu":
        yield list(range(len(columns[0]))), [tuple(column) for column in columns]
        return
    places: list[int] = []
    rows: list[tuple[Tensor, ...]] = []
    size = 0
    for place, row in enumerate(zip(*columns, strict=True)):
        for part in _parts(row):
            if rows and size + part[0].numel() > _PIECE:
                yield places, list(zip(*rows, strict=True))
                places, rows, size = [], [], 0
            places.append(place)
            rows.append(part)
            size += part[0].numel()
    yield places, list(zip(*rows, strict=True))


def _parts(row: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of one place, or flat parts of them."""
    count = row[0].numel()
    if count <= _PIECE:
        return iter((row,))
    flat = [each.as_strided((count,), (1,)) for each in row]
    return zip(*(torch.split(each, _PIECE) for each in flat), strict=True)


def _fitting(tensor: Tensor, dtype: torch.dtype, strides: tuple[int, ...]) -> Tensor:
    if tensor.dtype is dtype and tensor.stride() == strides:
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=dtype, device=tensor.device)
    return made.copy_(tensor)


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """A parameter's own, if it has no gaps; else those of a contiguous one."""
    if parameter.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return parameter.stride()
    strides: list[int] = []
    step = 1
    for length in reversed(parameter.shape):
        strides.insert(0, step)
        step *= length
    return tuple(strides)
