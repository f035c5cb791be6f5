# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Values that the ranks of a model hold between them, brought to those who want them.

Words: a rank *offers* values by key; an *entry* is what all ranks learn of a value: its pickle
without the data of its tensors, and their dtypes and shapes; a *transfer* moves such data.

Entries are small and go to everyone first. From then on all ranks know who sends what to whom, so
the data needs no more agreement: it goes raw, one large tensor at a time, or small ones together.
A large tensor is sent from the memory it is in, and arrives in the memory it stays in.

Cost: every tensor crosses once, by a broadcast if all want it, else by a message to each that does.
Memory beside the values: one bucket (8 MiB), and for what is on an accelerator one tensor.

Source: modelparallel specification, sections 4.4 and 4.5.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.job.communication import allgather_in
from smdistributed.modelparallel.torch.job.state import Job

__all__ = ["Offer", "Wants", "gather"]

_BUCKET_BYTES = 8 * 1024 * 1024
_SMALL_BYTES = 1024 * 1024  # from here on a tensor travels alone
_PIECE_BYTES = 1024 * 1024 * 1024  # of one operation
_TAG = 0x736D7067  # of messages between two ranks, apart from those of scripts


class _Entry(NamedTuple):
    pickled: bytes
    tensors: tuple[tuple[torch.dtype, tuple[int, ...]], ...]

    def nbytes(self, number: int) -> int:
        dtype, shape = self.tensors[number]
        return math.prod(shape) * dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Offer:
    """What one rank has said.

    Attributes:
        note: to the other ranks; any object, small.
        entries: of the values, by key.
    """

    note: Any
    entries: Mapping[Hashable, _Entry]


Wants = Callable[[int, Hashable, Sequence[Any]], bool]
"""Whether a rank of the group wants the value of a key, given all notes."""


class _Transfer(NamedTuple):
    source: int
    receivers: tuple[int, ...]
    parts: list[tuple[Hashable, int]]  # keys, and which tensor of the value


def gather(
    job: Job,
    offer: Callable[[], tuple[Any, Mapping[Any, Any]]],
    wants: Wants,
    *,
    copies: bool,
    kind: GroupKind = GroupKind.MP,
) -> tuple[list[Any], dict[Any, Any]]:
    """Brings values to the ranks that want them. A collective of the group, blocking.

    Args:
        job: what this process knows of the group.
        offer: returns this rank's note and values. What it raises is raised on every rank.
        wants: must give the same answer on all ranks.
        copies: what this rank has itself is copied into CPU memory too; else it stays what it is,
            on its device.
        kind: of the group whose ranks take part.

    Returns: the notes, by rank in the group; and all values, of the first rank that offers each
        unless this rank does, in the order of ranks and offers. Tensors from other ranks are in CPU
        memory and belong to the caller; those that this rank does not want are on the meta device.

    Raises:
        SMPError: another rank could not make its offer; says which, and why.
        Exception: what `offer` raises here.
    """
    rank = job.rank_in(kind)
    mine: Mapping[Hashable, Any] = {}
    tensors: dict[Hashable, list[Tensor]] = {}
    failure: Exception | None = None
    told: Any
    try:
        note, mine = offer()
        entries = {}
        for key, value in mine.items():
            entries[key], tensors[key] = _taken_apart(value)
        told = (Offer(note, entries), "")
    except Exception as error:
        failure = error
        told = (None, f"{type(error).__name__}: {error}")
    answers = allgather_in(kind, told)
    if failure is not None:
        raise failure
    for member, (_, reason) in zip(job.members(kind), answers, strict=True):
        if reason:
            raise SMPError(
                f"rank {member} could not say what it has: {reason}; expected all ranks of the"
                " model to take part. Read the log of that rank."
            )
    offers = [answer[0] for answer in answers]
    notes = [each.note for each in offers]
    arrived: dict[Hashable, list[Tensor]] = {}
    for transfer in _plan(offers, wants, notes):
        if rank == transfer.source:
            _send(job, kind, transfer, tensors, len(offers))
        elif rank in transfer.receivers:
            _receive(job, kind, transfer, offers[transfer.source], arrived, len(offers))
    values = {}
    for key, source in _sources(offers).items():
        entry = offers[source].entries[key]
        if key in tensors:
            if not copies:
                values[key] = mine[key]
                continue
            if wants(rank, key, notes):
                arrived[key] = [_copied(tensor) for tensor in tensors[key]]
        values[key] = _put_together(entry, arrived.get(key))
    return notes, values


# ---- a value and its tensors ---------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not Tensor or not _is_plain(obj):
            return None
        number = self._numbers.setdefault(id(obj), len(self._tensors))
        if number == len(self._tensors):
            self._tensors.append(obj)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, tensors: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid]


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is its bytes, dtype and shape; others are in the pickle."""
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return is_dense and not tensor.is_meta and not tensor.is_quantized


def _taken_apart(value: Any) -> tuple[_Entry, list[Tensor]]:
    file = io.BytesIO()
    tensors: list[Tensor] = []
    _Pickler(file, tensors).dump(value)
    what = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
    return _Entry(file.getvalue(), what), tensors


def _put_together(entry: _Entry, tensors: Sequence[Tensor] | None) -> Any:
    if tensors is None:
        tensors = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in entry.tensors]
    return _Unpickler(entry.pickled, tensors).load()


def _copied(tensor: Tensor) -> Tensor:
    """In CPU memory, and not the memory it was in."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        return plain.cpu().contiguous()
    return plain.clone(memory_format=torch.contiguous_format)


def _raw(tensor: Tensor) -> Tensor:
    """Its bytes; the memory of the tensor itself, where that is possible."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8)


# ---- transfers -----------------------------------------------------------------------------------


def _sources(offers: Sequence[Offer]) -> dict[Hashable, int]:
    """By key, the first rank that offers it."""
    sources: dict[Hashable, int] = {}
    for rank, offer in enumerate(offers):
        for key in offer.entries:
            sources.setdefault(key, rank)
    return sources


def _plan(offers: Sequence[Offer], wants: Wants, notes: Sequence[Any]) -> Iterator[_Transfer]:
    """The same on all ranks, so that everyone meets its partners in one order."""
    open_: _Transfer | None = None
    nbytes = 0
    for key, source in _sources(offers).items():
        receivers = tuple(
            rank
            for rank, other in enumerate(offers)
            if rank != source and key not in other.entries and wants(rank, key, notes)
        )
        if not receivers:
            continue
        entry = offers[source].entries[key]
        for number in range(len(entry.tensors)):
            size = entry.nbytes(number)
            if size >= _SMALL_BYTES:
                yield _Transfer(source, receivers, [(key, number)])
                continue
            if open_ is not None and (
                open_[:2] != (source, receivers) or nbytes + size > _BUCKET_BYTES
            ):
                yield open_
                open_ = None
            if open_ is None:
                open_, nbytes = _Transfer(source, receivers, []), 0
            open_.parts.append((key, number))
            nbytes += size
    if open_ is not None:
        yield open_


def _send(
    job: Job,
    kind: GroupKind,
    transfer: _Transfer,
    tensors: Mapping[Hashable, list[Tensor]],
    size: int,
) -> None:
    parts = [_raw(tensors[key][number]) for key, number in transfer.parts]
    buffer = parts[0] if len(parts) == 1 else torch.cat(parts)
    _move(job, kind, transfer, buffer, size)


def _receive(
    job: Job,
    kind: GroupKind,
    transfer: _Transfer,
    offer: Offer,
    arrived: dict[Hashable, list[Tensor]],
    size: int,
) -> None:
    made = []
    for key, number in transfer.parts:
        dtype, shape = offer.entries[key].tensors[number]
        made.append(torch.empty(shape, dtype=dtype, device="cpu"))
        received = arrived.setdefault(key, [made[-1]] * len(offer.entries[key].tensors))
        received[number] = made[-1]
    views = [tensor.reshape(-1).view(torch.uint8) for tensor in made]
    if len(views) == 1:
        buffer = views[0]
    else:
        nbytes = sum(view.numel() for view in views)
        buffer = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    _move(job, kind, transfer, buffer, size)
    if len(views) > 1:
        offset = 0
        for view in views:
            view.copy_(buffer[offset : offset + view.numel()])
            offset += view.numel()


def _move(job: Job, kind: GroupKind, transfer: _Transfer, buffer: Tensor, size: int) -> None:
    group = job.cpu_group(kind)
    for begin in range(0, buffer.numel(), _PIECE_BYTES):
        piece = buffer[begin : begin + _PIECE_BYTES]
        if len(transfer.receivers) == size - 1:
            dist.broadcast(piece, group_src=transfer.source, group=group)
        elif job.rank_in(kind) == transfer.source:
            for receiver in transfer.receivers:
                dist.send(piece, group_dst=receiver, group=group, tag=_TAG)
        else:
            dist.recv(piece, group_src=transfer.source, group=group, tag=_TAG)
