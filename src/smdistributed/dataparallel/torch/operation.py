# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One checked operation, as tensors, and how it is told to the engine, as addresses.

An `Operation` says nothing about how it is carried out: the tensors of a CPU operation go to the
engine as they are, those of a CUDA operation are cut into chunks first (`cuda/chunks.py`), each of
which is an `Operation` on host memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.collectives import _native
from smdistributed.dataparallel.torch.adoption.gate import gate
from smdistributed.dataparallel.torch.tensors import address, movable
from smdistributed.dataparallel.torch.work import EngineWork

__all__ = ["IN_PLACE", "Operation"]

IN_PLACE = frozenset(("all_reduce", "reduce", "broadcast"))
"""Kinds whose one buffer is input and output, though not both on every rank."""

_STORAGE = Tensor.untyped_storage


# Never changed once made; not `frozen`, which would cost a microsecond on every small collective.
@dataclasses.dataclass(slots=True)
class Operation:
    """What one rank contributes to one collective, or a message; checked and ready.

    Attributes:
        kind: name of the collective, a key of the table below.
        inputs: contiguous tensors that this rank reads: one, one for each rank, or none where only
            another rank's data counts (a broadcast away from its root).
        outputs: contiguous tensors that this rank writes. For `IN_PLACE` kinds the same tensor.
        dtype: of all tensors.
        code, factor: reduce operation, as the engine numbers it, and the factor of `PREMUL_SUM`.
        peer: root of a collective; the other rank of a message, `-1` for a receive from anyone.
        tag: of a message.
        input_counts, output_counts: of `all_to_all_single`, elements of the only input and output
            for and from each rank, one after the other.
        layout: of an `IN_PLACE` kind, in which order the dimensions lie in memory; 0 for the usual
            one. Ranks that differ in it get an error.
        copies: (target, source) pairs to copy once the operation is complete, for results that
            belong into tensors with holes.
    """

    kind: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    dtype: torch.dtype
    code: int = _native.SUM
    factor: float = 1.0
    peer: int = 0
    tag: int = 0
    layout: int = 0
    copies: Sequence[tuple[Tensor, Tensor]] = ()
    input_counts: Sequence[int] = ()
    output_counts: Sequence[int] = ()

    def memory(self) -> tuple[Any, ...]:
        """The storages of all tensors: `tensor.data = other` gives back what nobody else holds."""
        return tuple(map(_STORAGE, (*self.inputs, *self.outputs)))

    def run(self, engine: Any, timeout_s: float) -> None:
        """Do it now; returns when it is complete on this rank, copies included."""
        tensors = (*self.inputs, *self.outputs)
        _held = tensors[0].untyped_storage() if len(tensors) == 1 else [*map(_STORAGE, tensors)]
        function, arguments = _ENGINE_CALLS[self.kind]
        if self.layout:
            getattr(engine, function)(*arguments(self), False, timeout_s, layout=self.layout)
        else:
            getattr(engine, function)(*arguments(self), False, timeout_s)
        if self.copies:
            self.copy_back()

    def start(self, engine: Any, timeout_s: float) -> EngineWork:
        """Hand it to the engine, which holds the memory until then; copies are left to others."""
        held = (self.inputs, self.outputs, self.memory())
        function, arguments = _ENGINE_CALLS[self.kind]
        layout = {"layout": self.layout} if self.layout else {}
        work: EngineWork = getattr(engine, function)(
            *arguments(self), True, timeout_s, held, **layout
        )
        return work

    def copy_back(self) -> None:
        """Carry out `copies`."""
        with gate.call(), torch.no_grad():  # maybe in `wait`, where no call of the group is at hand
            for target, source in self.copies:
                target.copy_(source)


# ---- The engine's positional arguments, by kind ------------------------------------------------
#
# Counts are elements of the engine's type: types it does not know travel as bytes.

_Arguments = tuple[Any, ...]


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [address(tensor) for tensor in tensors]


def _consecutive(begin: int, counts: Sequence[int], itemsize: int) -> list[int]:
    """Where each of the parts of one tensor begins."""
    addresses = []
    for count in counts:
        addresses.append(begin)
        begin += count * itemsize
    return addresses


def _buffer(op: Operation) -> tuple[int, int, int]:
    """(address, count, dtype) of the only tensor."""
    tensor = (op.inputs or op.outputs)[0]
    dtype, scale = movable(op.dtype)
    return address(tensor), tensor.numel() * scale, dtype


def _all_reduce(op: Operation) -> _Arguments:
    return (*_buffer(op), op.code, op.factor)


def _reduce(op: Operation) -> _Arguments:
    return (*_buffer(op), op.code, op.peer, op.factor)


def _broadcast(op: Operation) -> _Arguments:
    return (*_buffer(op), op.peer)


def _message(op: Operation) -> _Arguments:
    return (*_buffer(op), op.peer, op.tag)


def _all_gather(op: Operation) -> _Arguments:
    dtype, scale = movable(op.dtype)
    counts = [output.numel() * scale for output in op.outputs]
    return address(op.inputs[0]), _addresses(op.outputs), counts, dtype


def _all_gather_single(op: Operation) -> _Arguments:
    begin, count, dtype = _buffer(op)
    return begin, address(op.outputs[0]), count, dtype


def _reduce_scatter(op: Operation) -> _Arguments:
    dtype, _ = movable(op.dtype)
    counts = [tensor.numel() for tensor in op.inputs]
    return (
        _addresses(op.inputs),
        address(op.outputs[0]),
        counts,
        dtype,
        op.code,
        op.factor,
    )


def _reduce_scatter_single(op: Operation) -> _Arguments:
    output = op.outputs[0]
    dtype, _ = movable(op.dtype)
    return (
        address(op.inputs[0]),
        address(output),
        output.numel(),
        dtype,
        op.code,
        op.factor,
    )


def _all_to_all(op: Operation) -> _Arguments:
    dtype, scale = movable(op.dtype)
    return (
        _addresses(op.inputs),
        [tensor.numel() * scale for tensor in op.inputs],
        _addresses(op.outputs),
        [tensor.numel() * scale for tensor in op.outputs],
        dtype,
    )


def _all_to_all_single(op: Operation) -> _Arguments:
    dtype, scale = movable(op.dtype)
    itemsize = op.dtype.itemsize
    return (
        _consecutive(address(op.inputs[0]), op.input_counts, itemsize),
        [count * scale for count in op.input_counts],
        _consecutive(address(op.outputs[0]), op.output_counts, itemsize),
        [count * scale for count in op.output_counts],
        dtype,
    )


def _gather(op: Operation) -> _Arguments:
    begin, own, dtype = _buffer(op)
    _, scale = movable(op.dtype)
    counts = [output.numel() * scale for output in op.outputs]
    return begin, _addresses(op.outputs), counts, dtype, op.peer, own


def _scatter(op: Operation) -> _Arguments:
    output = op.outputs[0]
    dtype, scale = movable(op.dtype)
    counts = [tensor.numel() * scale for tensor in op.inputs]
    return (
        _addresses(op.inputs),
        address(output),
        counts,
        dtype,
        op.peer,
        output.numel() * scale,
    )


_ENGINE_CALLS: dict[str, tuple[str, Callable[[Operation], _Arguments]]] = {
    "all_reduce": ("all_reduce_ptr", _all_reduce),
    "reduce": ("reduce_ptr", _reduce),
    "broadcast": ("broadcast_ptr", _broadcast),
    "all_gather": ("all_gather_ptr", _all_gather),
    "all_gather_single": ("all_gather_into_ptr", _all_gather_single),
    "reduce_scatter": ("reduce_scatter_ptr", _reduce_scatter),
    "reduce_scatter_single": ("reduce_scatter_from_ptr", _reduce_scatter_single),
    "all_to_all": ("all_to_all_ptr", _all_to_all),
    "all_to_all_single": ("all_to_all_ptr", _all_to_all_single),
    "gather": ("gather_ptr", _gather),
    "scatter": ("scatter_ptr", _scatter),
    "send": ("send_ptr", _message),
    "recv": ("recv_ptr", _message),
}
