# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From tensors to engine calls: each collective's checks, addresses and counts, in one place.

A `Calls` object belongs to one group. Its methods check the tensors of one operation and describe
the engine call that does it; nothing has moved yet. The process group then runs or starts the call.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch.tensors import (
    DTYPE_CODES,
    PREMUL_SUM,
    Finish,
    check_reducible,
    contiguous,
    in_place,
    movable,
    premul_factor,
    staged_input,
    staged_outputs,
)
from smdistributed.dataparallel.torch.work import EngineWork

__all__ = ["ANY_SOURCE", "Calls", "EngineCall", "reduction"]

ANY_SOURCE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class EngineCall:
    """One engine operation, checked and ready.

    `arguments` are the engine's positional ones up to `async_op`; `keep_alive` owns all memory that
    they point to; `finish` is what this rank does with the result afterwards.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keep_alive: Any
    finish: Finish | None = None

    def run(self, timeout_s: float) -> None:
        """Do it now; returns when it is complete on this rank."""
        self.function(*self.arguments, False, timeout_s)
        if self.finish is not None:
            self.finish()

    def start(self, timeout_s: float) -> EngineWork:
        """Hand it to the engine; `finish` is left to whoever waits."""
        work: EngineWork = self.function(*self.arguments, True, timeout_s, self.keep_alive)
        return work


def reduction(op: ReduceOp, dtype: torch.dtype, operation: str) -> tuple[int, float]:
    """(engine code, factor) of a reduce operation; the factor is 1 except for `PREMUL_SUM`."""
    code = check_reducible(dtype, op, operation)
    return code, premul_factor(op) if code == PREMUL_SUM else 1.0


class Calls:
    """Builds engine calls for one group.

    Args:
        engine: the group's `_native.Communicator`.
        rank, size: of this process in the group.

    Raises (every method): `SMDDPConfigInvalid` or `SMDDPUnsupported`, on this rank alone, before
    anything has moved.
    """

    def __init__(self, engine: Any, rank: int, size: int) -> None:
        self._engine = engine
        self._rank = rank
        self._size = size

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return self._size

    def all_reduce(self, tensor: Tensor, op: ReduceOp, operation: str) -> EngineCall:
        """In place on every rank."""
        in_place(tensor, operation)
        code, factor = reduction(op, tensor.dtype, operation)
        arguments = (tensor.data_ptr(), tensor.numel(), DTYPE_CODES[tensor.dtype], code, factor)
        return EngineCall(self._engine.all_reduce_ptr, arguments, tensor)

    def reduce(self, tensor: Tensor, op: ReduceOp, root: int) -> EngineCall:
        """In place on the root; the other ranks' tensors are only read."""
        in_place(tensor, "reduce")
        self._check_rank(root, "reduce", "root")
        code, factor = reduction(op, tensor.dtype, "reduce")
        dtype = DTYPE_CODES[tensor.dtype]
        arguments = (tensor.data_ptr(), tensor.numel(), dtype, code, root, factor)
        return EngineCall(self._engine.reduce_ptr, arguments, tensor)

    def broadcast(self, tensor: Tensor, root: int) -> EngineCall:
        """In place; read on the root, written elsewhere."""
        in_place(tensor, "broadcast")
        self._check_rank(root, "broadcast", "root")
        dtype, scale = movable(tensor.dtype)
        arguments = (tensor.data_ptr(), tensor.numel() * scale, dtype, root)
        return EngineCall(self._engine.broadcast_ptr, arguments, tensor)

    def all_gather(self, outputs: Sequence[Tensor], mine: Tensor, operation: str) -> EngineCall:
        """One output for each rank, of that rank's size, which may differ from the others'."""
        self._check_length(outputs, operation, "output tensors")
        self._check_dtypes(outputs, mine.dtype, operation)
        own = outputs[self._rank]
        if own.shape != mine.shape:
            raise SMDDPConfigInvalid(
                f"{operation}: invalid tensor size at index {self._rank} (expected"
                f" {tuple(mine.shape)}, got {tuple(own.shape)}). Give each output the shape of the"
                " input of its rank."
            )
        mine = staged_input(mine, operation)
        staged, finish = staged_outputs(outputs, operation)
        dtype, scale = movable(mine.dtype)
        counts = [output.numel() * scale for output in staged]
        arguments = (mine.data_ptr(), _addresses(staged), counts, dtype)
        return EngineCall(self._engine.all_gather_ptr, arguments, (mine, staged), finish)

    def all_gather_single(self, output: Tensor, mine: Tensor, operation: str) -> EngineCall:
        """One output for all ranks, of `size` times the elements of the input."""
        self._check_dtypes([output], mine.dtype, operation)
        if output.numel() != mine.numel() * self._size:
            raise SMDDPConfigInvalid(
                f"{operation}: output tensor size must be equal to world_size times input tensor"
                f" size, but the output holds {output.numel()} elements, the input {mine.numel()},"
                f" and the group has {self._size} ranks. Allocate"
                f" {mine.numel() * self._size} elements for the output."
            )
        mine = staged_input(mine, operation)
        (staged,), finish = staged_outputs([output], operation)
        dtype, scale = movable(mine.dtype)
        arguments = (mine.data_ptr(), staged.data_ptr(), mine.numel() * scale, dtype)
        return EngineCall(self._engine.all_gather_into_ptr, arguments, (mine, staged), finish)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, operation: str
    ) -> EngineCall:
        """One input for each rank, of that rank's size, which may differ from the others'."""
        self._check_length(inputs, operation, "input tensors")
        self._check_dtypes(inputs, output.dtype, operation)
        own = inputs[self._rank]
        if own.numel() != output.numel():
            raise SMDDPConfigInvalid(
                f"{operation}: invalid tensor size at index {self._rank} (expected"
                f" {tuple(output.shape)}, got {tuple(own.shape)}). Give the input at the index of a"
                " rank the shape of that rank's output."
            )
        inputs = [staged_input(tensor, operation) for tensor in inputs]
        (staged,), finish = staged_outputs([output], operation)
        code, factor = reduction(op, output.dtype, operation)
        arguments = (
            _addresses(inputs),
            staged.data_ptr(),
            [tensor.numel() for tensor in inputs],
            DTYPE_CODES[output.dtype],
            code,
            factor,
        )
        return EngineCall(self._engine.reduce_scatter_ptr, arguments, (inputs, staged), finish)

    def reduce_scatter_single(
        self, output: Tensor, mine: Tensor, op: ReduceOp, operation: str
    ) -> EngineCall:
        """One input for all ranks, of `size` times the elements of the output."""
        self._check_dtypes([output], mine.dtype, operation)
        if mine.numel() != output.numel() * self._size:
            raise SMDDPConfigInvalid(
                f"{operation}: input tensor must be the same size as output size times world"
                f" size, but the input holds {mine.numel()} elements, the output {output.numel()},"
                f" and the group has {self._size} ranks. Pad the input to a multiple of the"
                " group's size."
            )
        mine = staged_input(mine, operation)
        (staged,), finish = staged_outputs([output], operation)
        code, factor = reduction(op, output.dtype, operation)
        arguments = (
            mine.data_ptr(),
            staged.data_ptr(),
            output.numel(),
            DTYPE_CODES[output.dtype],
            code,
            factor,
        )
        return EngineCall(self._engine.reduce_scatter_from_ptr, arguments, (mine, staged), finish)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> EngineCall:
        """One input and one output for each rank; sizes agree pairwise."""
        operation = "all_to_all"
        self._check_length(outputs, operation, "output tensors")
        self._check_length(inputs, operation, "input tensors")
        self._check_dtypes([*outputs, *inputs], inputs[0].dtype, operation)
        inputs = [staged_input(tensor, operation) for tensor in inputs]
        staged, finish = staged_outputs(outputs, operation)
        dtype, scale = movable(inputs[0].dtype)
        arguments = (
            _addresses(inputs),
            [tensor.numel() * scale for tensor in inputs],
            _addresses(staged),
            [tensor.numel() * scale for tensor in staged],
            dtype,
        )
        return EngineCall(self._engine.all_to_all_ptr, arguments, (inputs, staged), finish)

    def all_to_all_single(
        self,
        output: Tensor,
        mine: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> EngineCall:
        """Splits count rows of dimension 0; an empty list means even shares."""
        operation = "all_to_all_single"
        self._check_dtypes([output], mine.dtype, operation)
        contiguous(output, operation)
        contiguous(mine, operation)
        dtype, scale = movable(mine.dtype)
        in_addresses, in_counts = self._shares(mine, input_splits, "input_split_sizes")
        out_addresses, out_counts = self._shares(output, output_splits, "output_split_sizes")
        arguments = (
            in_addresses,
            [count * scale for count in in_counts],
            out_addresses,
            [count * scale for count in out_counts],
            dtype,
        )
        return EngineCall(self._engine.all_to_all_ptr, arguments, (output, mine))

    def gather(self, outputs: Sequence[Tensor], mine: Tensor, root: int) -> EngineCall:
        """`outputs`: on the root one tensor for each rank, of its size; empty elsewhere."""
        operation = "gather"
        self._check_rank(root, operation, "root")
        mine = staged_input(mine, operation)
        dtype, scale = movable(mine.dtype)
        staged: Sequence[Tensor] = ()
        finish: Finish | None = None
        if self._rank == root:
            self._check_shares(outputs, mine, operation, "output tensors")
            staged, finish = staged_outputs(outputs, operation)
        counts = [output.numel() * scale for output in staged]
        own = mine.numel() * scale
        arguments = (mine.data_ptr(), _addresses(staged), counts, dtype, root, own)
        return EngineCall(self._engine.gather_ptr, arguments, (mine, staged), finish)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> EngineCall:
        """`inputs`: on the root one tensor for each rank, of its size; empty elsewhere."""
        operation = "scatter"
        self._check_rank(root, operation, "root")
        if self._rank == root:
            self._check_shares(inputs, output, operation, "input tensors")
            inputs = [staged_input(tensor, operation) for tensor in inputs]
        else:
            inputs = ()
        (staged,), finish = staged_outputs([output], operation)
        dtype, scale = movable(output.dtype)
        counts = [tensor.numel() * scale for tensor in inputs]
        own = output.numel() * scale
        arguments = (_addresses(inputs), staged.data_ptr(), counts, dtype, root, own)
        return EngineCall(self._engine.scatter_ptr, arguments, (inputs, staged), finish)

    def send(self, tensor: Tensor, peer: int, tag: int) -> EngineCall:
        """To one rank; a receive with the same tag takes it."""
        contiguous(tensor, "send")
        self._check_rank(peer, "send", "destination")
        dtype, scale = movable(tensor.dtype)
        arguments = (tensor.data_ptr(), tensor.numel() * scale, dtype, peer, tag)
        return EngineCall(self._engine.send_ptr, arguments, tensor)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> EngineCall:
        """`peer` may be `ANY_SOURCE`."""
        contiguous(tensor, "recv")
        if peer != ANY_SOURCE:
            self._check_rank(peer, "recv", "source")
        dtype, scale = movable(tensor.dtype)
        arguments = (tensor.data_ptr(), tensor.numel() * scale, dtype, peer, tag)
        return EngineCall(self._engine.recv_ptr, arguments, tensor)

    def _shares(
        self, tensor: Tensor, splits: Sequence[int], name: str
    ) -> tuple[list[int], list[int]]:
        """Addresses and element counts of each rank's rows in one contiguous tensor."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise SMDDPConfigInvalid(
                    f"all_to_all_single: Tensor's dim 0 does not divide equally across group size:"
                    f" {rows} rows, {self._size} ranks. Pass {name}, or pad the tensor."
                )
            splits = [rows // self._size] * self._size
        if len(splits) != self._size:
            raise SMDDPConfigInvalid(
                f"all_to_all_single: Number of tensor splits not equal to group size: {name} has"
                f" {len(splits)} entries, the group {self._size} ranks. Pass one entry per rank."
            )
        if sum(splits) != rows or min(splits) < 0:
            raise SMDDPConfigInvalid(
                f"all_to_all_single: Split sizes doesn't match total dim 0 size: {name}"
                f" {list(splits)} add up to {sum(splits)}, the tensor has {rows} rows. Make them"
                " non-negative and equal in sum."
            )
        row = math.prod(tensor.shape[1:])
        addresses = []
        address = tensor.data_ptr()
        for split in splits:
            addresses.append(address)
            address += split * row * tensor.element_size()
        return addresses, [split * row for split in splits]

    def _check_shares(
        self, shares: Sequence[Tensor], own: Tensor, operation: str, what: str
    ) -> None:
        self._check_length(shares, operation, what)
        self._check_dtypes(shares, own.dtype, operation)
        share = shares[self._rank]
        if share.numel() != own.numel():
            raise SMDDPConfigInvalid(
                f"{operation}: invalid tensor size at index {self._rank} (expected"
                f" {tuple(own.shape)}, got {tuple(share.shape)}). Give the tensor at the index of a"
                f" rank the size that this rank passes to {operation}."
            )

    def _check_length(self, tensors: Sequence[Tensor], operation: str, what: str) -> None:
        if len(tensors) != self._size:
            raise SMDDPConfigInvalid(
                f"{operation} got a list of {len(tensors)} {what}; expected {self._size}, one for"
                " each rank of the group. Build the list from group.size()."
            )

    def _check_dtypes(self, tensors: Sequence[Tensor], dtype: torch.dtype, operation: str) -> None:
        for index, tensor in enumerate(tensors):
            if tensor.dtype != dtype:
                raise SMDDPConfigInvalid(
                    f"{operation}: invalid tensor type at index {index} (expected {dtype}, got"
                    f" {tensor.dtype}). All tensors of one call must have one dtype; convert it."
                )

    def _check_rank(self, rank: int, operation: str, what: str) -> None:
        if not 0 <= rank < self._size:
            raise SMDDPConfigInvalid(
                f"{operation}: {what} rank {rank} is out of range; expected 0 to {self._size - 1}."
                " Ranks of a sub-group count from 0; pass a rank of this group."
            )


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
