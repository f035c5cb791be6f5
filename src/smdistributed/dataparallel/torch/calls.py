# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From a caller's tensors to a checked `Operation`: each collective's rules, in one place.

Nothing has moved when a method here returns; whoever called it then runs or starts the operation.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch.operation import Operation
from smdistributed.dataparallel.torch.tensors import (
    STRIDED,
    contiguous,
    in_place,
    is_plain,
    literal,
    reduction,
    staged_input,
    staged_outputs,
    storage_order,
)

__all__ = ["Calls"]

_ANY_SOURCE = -1

_OWN_SIZE = "Give the tensor at the index of a rank the size of that rank's {}."
# Rule and advice where one tensor holds a share of every rank.
_GATHERED = (
    "output tensor size must be equal to world_size times input tensor size",
    "Allocate {} elements for the output.",
)
_SCATTERED = (
    "input tensor must be the same size as output size times world size",
    "Pad the input to a multiple of the group's size.",
)


class Calls:
    """Checks the tensors of one rank of one group.

    Args:
        rank, size: of this process in the group.
        device_type: where the tensors must be, "cpu" or "cuda".

    Raises (every method): `SMDDPConfigInvalid` or `SMDDPUnsupported`, on this rank alone, before
    anything has moved.
    """

    def __init__(self, rank: int, size: int, device_type: str = "cpu") -> None:
        self._rank = rank
        self._size = size
        self._device_type = device_type
        self._is_cpu = device_type == "cpu"

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return self._size

    # ---- one tensor, in place --------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, op: ReduceOp, operation: str) -> Operation:
        """In place on every rank."""
        tensor, layout = self._dense(tensor, operation, is_only_read=False)
        code, factor = reduction(op, tensor.dtype, operation)
        return Operation(
            "all_reduce", (tensor,), (tensor,), tensor.dtype, code, factor, layout=layout
        )

    def reduce(self, tensor: Tensor, op: ReduceOp, root: int) -> Operation:
        """In place on the root; the other ranks' tensors are only read."""
        self._check_rank(root, "reduce", "root")
        tensor, layout = self._dense(tensor, "reduce", is_only_read=root != self._rank)
        code, factor = reduction(op, tensor.dtype, "reduce")
        outputs = (tensor,) if root == self._rank else ()
        return Operation(
            "reduce", (tensor,), outputs, tensor.dtype, code, factor, root, layout=layout
        )

    def broadcast(self, tensor: Tensor, root: int) -> Operation:
        """In place; read on the root, written elsewhere."""
        self._check_rank(root, "broadcast", "root")
        is_root = root == self._rank
        tensor, layout = self._dense(tensor, "broadcast", is_only_read=is_root)
        inputs, outputs = ((tensor,), ()) if is_root else ((), (tensor,))
        return Operation("broadcast", inputs, outputs, tensor.dtype, peer=root, layout=layout)

    # ---- a share from or for each rank -----------------------------------------------------

    def all_gather(self, outputs: Sequence[Tensor], mine: Tensor, operation: str) -> Operation:
        """One output for each rank, of that rank's size, which may differ from the others'."""
        self._check_shares(outputs, mine, operation, "output tensors", "input")
        if outputs[self._rank].shape != mine.shape:
            raise self._wrong_size(outputs[self._rank], mine, operation, "input")
        return self._moving("all_gather", outputs, [mine], operation)

    def all_gather_single(self, output: Tensor, mine: Tensor, operation: str) -> Operation:
        """One output for all ranks, of `size` times the elements of the input."""
        self._check_whole(output, mine, operation, *_GATHERED)
        return self._moving("all_gather_single", [output], [mine], operation)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, operation: str
    ) -> Operation:
        """One input for each rank, of that rank's size, which may differ from the others'."""
        self._check_shares(inputs, output, operation, "input tensors", "output")
        return self._moving("reduce_scatter", [output], inputs, operation, op)

    def reduce_scatter_single(
        self, output: Tensor, mine: Tensor, op: ReduceOp, operation: str
    ) -> Operation:
        """One input for all ranks, of `size` times the elements of the output."""
        self._check_whole(mine, output, operation, *_SCATTERED)
        return self._moving("reduce_scatter_single", [output], [mine], operation, op)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Operation:
        """One input and one output for each rank; sizes agree pairwise."""
        operation = "all_to_all"
        self._check_length(outputs, operation, "output tensors")
        self._check_length(inputs, operation, "input tensors")
        self._check_dtypes([*outputs, *inputs], inputs[0].dtype, operation)
        return self._moving("all_to_all", outputs, inputs, operation)

    def all_to_all_single(
        self,
        output: Tensor,
        mine: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> Operation:
        """Splits count rows of dimension 0; an empty list means even shares."""
        operation = "all_to_all_single"
        self._check_dtypes([output], mine.dtype, operation)
        if not (self._is_cpu and is_plain(output) and is_plain(mine)):
            mine = literal(mine)
            contiguous(output, operation, self._device_type)
            contiguous(mine, operation, self._device_type)
        return Operation(
            "all_to_all_single",
            (mine,),
            (output,),
            mine.dtype,
            input_counts=self._counts(mine, input_splits, "input_split_sizes"),
            output_counts=self._counts(output, output_splits, "output_split_sizes"),
        )

    def gather(self, outputs: Sequence[Tensor], mine: Tensor, root: int) -> Operation:
        """`outputs`: on the root one tensor for each rank, of its size; empty elsewhere."""
        self._check_rank(root, "gather", "root")
        if self._rank != root:
            outputs = ()
        else:
            self._check_shares(outputs, mine, "gather", "output tensors", "input")
        return self._moving("gather", outputs, [mine], "gather", root=root)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> Operation:
        """`inputs`: on the root one tensor for each rank, of its size; empty elsewhere."""
        self._check_rank(root, "scatter", "root")
        if self._rank != root:
            inputs = ()
        else:
            self._check_shares(inputs, output, "scatter", "input tensors", "output")
        return self._moving("scatter", [output], inputs, "scatter", root=root)

    # ---- messages --------------------------------------------------------------------------

    def send(self, tensor: Tensor, peer: int, tag: int) -> Operation:
        """To one rank; a receive with the same tag takes it."""
        if not (self._is_cpu and is_plain(tensor)):
            tensor = literal(tensor)
            contiguous(tensor, "send", self._device_type)
        self._check_rank(peer, "send", "destination")
        self._check_tag(tag, "send")
        return Operation("send", (tensor,), (), tensor.dtype, peer=peer, tag=tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Operation:
        """From one rank; takes a message with the same tag."""
        self._check_rank(peer, "recv", "source")
        return self._receive(tensor, peer, tag)

    def recv_anysource(self, tensor: Tensor, tag: int) -> Operation:
        """From whichever rank sends first."""
        return self._receive(tensor, _ANY_SOURCE, tag)

    def _receive(self, tensor: Tensor, peer: int, tag: int) -> Operation:
        if not (self._is_cpu and is_plain(tensor)):
            contiguous(tensor, "recv", self._device_type)
        self._check_tag(tag, "recv")
        return Operation("recv", (), (tensor,), tensor.dtype, peer=peer, tag=tag)

    # ---- what they share -------------------------------------------------------------------

    def _dense(self, tensor: Tensor, operation: str, *, is_only_read: bool) -> tuple[Tensor, int]:
        """A tensor whose memory may be used in storage order, and that order."""
        if self._is_cpu and is_plain(tensor):
            return tensor, 0
        if is_only_read:
            tensor = literal(tensor)
        in_place(tensor, operation, self._device_type)
        return tensor, storage_order(tensor)

    def _moving(
        self,
        kind: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        operation: str,
        op: ReduceOp | None = None,
        root: int = 0,
    ) -> Operation:
        """An operation from `inputs` to `outputs`; tensors with holes get contiguous stand-ins."""
        tensors = (*inputs, *outputs)
        dtype = tensors[0].dtype
        # Tuples: the caller may change its lists while the operation is under way.
        inputs, outputs = tuple(inputs), tuple(outputs)
        copies: Sequence[tuple[Tensor, Tensor]] = ()
        is_real = not dtype.is_complex
        for tensor in tensors:
            if not (  # is_plain(), at once: there are many
                self._is_cpu
                and tensor.is_cpu
                and tensor.layout is STRIDED
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and (is_real or not tensor.is_conj())
            ):
                inputs = [staged_input(t, operation, self._device_type) for t in inputs]
                outputs, copies = staged_outputs(outputs, operation, self._device_type)
                break
        if op is None:
            return Operation(kind, inputs, outputs, dtype, peer=root, copies=copies)
        code, factor = reduction(op, dtype, operation)
        return Operation(kind, inputs, outputs, dtype, code, factor, copies=copies)

    def _counts(self, tensor: Tensor, splits: Sequence[int], name: str) -> Sequence[int]:
        """Elements of each rank's rows of one contiguous tensor."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise SMDDPConfigInvalid(
                    f"all_to_all_single: Tensor's dim 0 does not divide equally across group size:"
                    f" {rows} rows, {self._size} ranks. Pass {name}, or pad the tensor."
                )
            return [tensor.numel() // self._size] * self._size
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
        row = tensor.numel() // rows if rows else 0
        return [split * row for split in splits]

    def _check_whole(
        self, whole: Tensor, share: Tensor, operation: str, rule: str, advice: str
    ) -> None:
        """`whole` must hold one `share` for each rank."""
        if whole.dtype != share.dtype:
            self._check_dtypes([whole], share.dtype, operation)
        if whole.numel() != share.numel() * self._size:
            raise SMDDPConfigInvalid(
                f"{operation}: {rule}, but they hold {whole.numel()} and {share.numel()} elements,"
                f" and the group has {self._size} ranks."
                f" {advice.format(share.numel() * self._size)}"
            )

    def _check_shares(
        self, shares: Sequence[Tensor], own: Tensor, operation: str, what: str, counterpart: str
    ) -> None:
        """`shares` must be one for each rank; the one at our index matches `own`."""
        if len(shares) != self._size:
            self._check_length(shares, operation, what)
        dtype = own.dtype
        for share in shares:
            if share.dtype != dtype:
                self._check_dtypes(shares, dtype, operation)
        if shares[self._rank].numel() != own.numel():
            raise self._wrong_size(shares[self._rank], own, operation, counterpart)

    def _wrong_size(
        self, share: Tensor, own: Tensor, operation: str, counterpart: str
    ) -> SMDDPConfigInvalid:
        return SMDDPConfigInvalid(
            f"{operation}: invalid tensor size at index {self._rank} (expected"
            f" {tuple(own.shape)}, got {tuple(share.shape)}). {_OWN_SIZE.format(counterpart)}"
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

    def _check_tag(self, tag: int, operation: str) -> None:
        if not hasattr(tag, "__index__") or not 0 <= operator.index(tag) < 1 << 63:
            raise SMDDPConfigInvalid(
                f"{operation}: {tag!r} is no tag; expected a whole number from 0 to 2**63 - 1, the"
                " same on both sides."
            )

    def _check_rank(self, rank: int, operation: str, what: str) -> None:
        if not 0 <= rank < self._size:
            raise SMDDPConfigInvalid(
                f"{operation}: {what} rank {rank} is out of range; expected 0 to {self._size - 1}."
                " Ranks of a sub-group count from 0; pass a rank of this group."
            )
