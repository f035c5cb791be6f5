# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects between ranks: `broadcast`, `send`, `recv_from`, `allgather`, and the barriers.

For what a script says now and then: settings, losses, file names, a state dict. The data of the
training has its own ways.

`send` and `broadcast` are messages to each receiver, which calls `recv_from`. A message is a head
of three numbers, an opening (the sizes of the blocks, and the pickle), then each block. What packs
objects and moves bytes is a framework's `Carrier`.

An object that does not pickle raises a TypeError at its sender, and at the receivers too, which
would wait for it in vain otherwise. A rank that died ends the waiting with the error of what
carries the bytes: `SMDDPPeerLost`, and `SMDDPTimeoutError` for one that does not come.

All functions block until they are done: `send` and `broadcast` until the object may be changed
again, which can be before the other side has asked for it. Two ranks may send to each other before
either receives. Messages may be sent and received by any thread; the collectives, as all of a
group, by one at a time.

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from smdistributed._common.errors import InternalError
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.arguments import CommGroup, RankType, kind_of, peer
from smdistributed.modelparallel.job.state import BaseJob, BaseState

__all__ = ["Bytes", "Carrier", "Communication", "Parcel", "Work"]

Bytes = npt.NDArray[np.uint8]
"""Of one dimension, contiguous and writable."""

_HEAD = 3  # numbers: what it is, bytes of the opening, number of blocks
_NUMBER = np.dtype(np.int64)

_SENT_WITHIN_S = 60.0  # what is under way at the end


@dataclasses.dataclass(frozen=True)
class Parcel:
    """An object as bytes.

    Attributes:
        stream: the pickle.
        blocks: what the pickle leaves out, in its order, none of them empty. At the sender these
            may be the memory of the object itself.
    """

    stream: Bytes
    blocks: tuple[Bytes, ...] = ()


class Work(Protocol):
    """A part of a message on its way."""

    def is_completed(self) -> bool:
        """Whether it has been sent, or never will be."""

    def wait(self) -> Any:
        """Raises what has kept it from being sent."""


class Carrier(Protocol):
    """What one framework's ranks pack objects with, and what moves the bytes."""

    foreign: str
    """What to do if a message comes that is not of `send`: the last sentence of an error."""

    def require(self, function: str, kind: GroupKind | None) -> BaseJob:
        """The job, for a collective of a kind of group, or for a message (None).

        Raises:
            SMPNotInitialized: there is none yet.
            RuntimeError: it cannot be called where it is.
        """

    def pack(self, obj: Any) -> Parcel:
        """The object as bytes; it must not change until they have been sent.

        Raises:
            TypeError: the object does not pickle; the text names its type.
        """

    def unpack(self, parcel: Parcel) -> Any:
        """The object, which may use the memory of the parcel.

        Raises:
            TypeError: what the pickle names is not here, or raises.
        """

    def start_sending(self, part: Bytes, receiver: int) -> Work | None:
        """Sends bytes, not empty, to a rank of the world in their order; waits for nobody.

        Keeps them until they are sent.
        """

    def receive(self, part: Bytes, source: int) -> None:
        """Fills `part` with the next bytes of a rank of the world; blocks."""

    def gather(self, kind: GroupKind, mine: Bytes) -> list[Bytes]:
        """The bytes of all members of a group, as many each; a collective."""

    def meet(self, kind: GroupKind) -> None:
        """Returns when all members of a group have come; a collective."""


class _What(enum.IntEnum):
    """What a message holds; numbers that nothing else looks like."""

    OBJECT = 0x6F626A31
    EXPLANATION = 0x6F626A32  # why there is no object


class Communication:
    """The functions that a framework's package offers under `smp`.

    Args:
        state: what is called at whose end.
        carrier: of the framework.
    """

    def __init__(self, state: BaseState[Any], carrier: Carrier) -> None:
        self._state = state
        self._carrier = carrier
        self._posting = threading.Lock()  # the parts of a message follow one another
        self._under_way: list[Work | None] = []  # parts that no receiver has taken yet
        self._end_of: BaseJob | None = None  # the job at whose end they are waited for
        self._taking: dict[int, threading.Lock] = {}  # by sender

    def broadcast(self, obj: Any, group: CommGroup) -> None:
        """Send an object to all other members of a group; each calls `recv_from`.

        Args:
            obj: anything that pickles, tensors on any device included.
            group: whose members get it.

        Raises:
            TypeError: the object does not pickle; the receivers raise one, too.
            ConfigError: (a ValueError) `group` is no `CommGroup`.
            SMPNotInitialized: before `smp.init()`.
        """
        job = self._carrier.require("smp.broadcast()", None)
        members = job.members(kind_of(group, CommGroup, "smp.broadcast()", "group"))
        self._send(job, obj, [member for member in members if member != job.rank])

    def send(self, obj: Any, dest_rank: int, rank_type: RankType) -> None:
        """Send an object to another rank, which calls `recv_from`.

        Returns when the object has been copied: two ranks may both send first. What has not been
        taken stays here; `smp.reset()` and the end of the process wait for that, a minute at most.

        Args:
            obj: anything that pickles, tensors on any device included.
            dest_rank: who gets it.
            rank_type: what `dest_rank` counts.

        Raises:
            TypeError: the object does not pickle; the receiver raises one, too.
            ConfigError: (a ValueError) there is no such rank, it is this one, or `rank_type` is no
                `RankType`.
            SMPNotInitialized: before `smp.init()`.
        """
        job = self._carrier.require("smp.send()", None)
        self._send(job, obj, [peer(job, dest_rank, rank_type, "smp.send()", "dest_rank")])

    def recv_from(self, src_rank: int, rank_type: RankType) -> Any:
        """The next object that a rank sends to this one, with `send` or `broadcast`.

        Args:
            src_rank: who sends it.
            rank_type: what `src_rank` counts; need not be what the sender used.

        Returns:
            A copy of the object. Tensors that were on an accelerator are on this rank's, if it has
            one; all others are on the CPU.

        Raises:
            TypeError: the object does not pickle at its sender, or does not unpickle here.
            ConfigError: (a ValueError) there is no such rank, it is this one, or `rank_type` is no
                `RankType`.
            SMPNotInitialized: before `smp.init()`.
        """
        job = self._carrier.require("smp.recv_from()", None)
        source = peer(job, src_rank, rank_type, "smp.recv_from()", "src_rank")
        with self._taking.setdefault(source, threading.Lock()):
            what, parcel = self._take(job, source)
        return self._open(job, what, parcel, source)

    def allgather(self, obj: Any, group: CommGroup) -> list[Any]:
        """An object of each member of a group, by rank in the group; all members call it.

        Args:
            obj: this rank's; anything that pickles, tensors on any device included.
            group: whose members take part.

        Returns:
            Copies, this rank's own included; the devices of tensors as of `recv_from`.

        Raises:
            TypeError: the object of a member does not pickle; the same on all of them. Or one does
                not unpickle here.
            ConfigError: (a ValueError) `group` is no `CommGroup`.
            SMPNotInitialized: before `smp.init()`.
            RuntimeError: inside of a step, of a group with several partitions.
        """
        return self.allgather_in(kind_of(group, CommGroup, "smp.allgather()", "group"), obj)

    def allgather_in(self, kind: GroupKind, obj: Any) -> list[Any]:
        """`allgather` for the library itself, which names this rank's groups by their kind."""
        job = self._carrier.require("smp.allgather()", kind)
        what, parcel, failure = self._try_to_pack(job, obj)
        opening = _opening(parcel)
        payload = np.concatenate([opening, *parcel.blocks])
        head = _numbers(what, opening.size, len(parcel.blocks), payload.size)
        heads = [theirs.view(_NUMBER).tolist() for theirs in self._carrier.gather(kind, head)]
        padded = np.zeros(max(theirs[-1] for theirs in heads), np.uint8)
        padded[: payload.size] = payload
        payloads = self._carrier.gather(kind, padded)
        if failure is not None:
            raise failure
        everyone = [
            (what, _separated(row, opening_bytes, num_blocks), member)
            for (what, opening_bytes, num_blocks, _), row, member in zip(
                heads, payloads, job.members(kind), strict=True
            )
        ]
        for told in everyone:
            if told[0] == _What.EXPLANATION:  # then no rank opens anything
                self._open(job, *told)
        return [self._open(job, *told) for told in everyone]

    def barrier(self, group: CommGroup = CommGroup.WORLD) -> None:
        """Return when all members of a group have entered; raises as `allgather`."""
        self._meet(kind_of(group, CommGroup, "smp.barrier()", "group"), "smp.barrier()")

    def mp_barrier(self) -> None:
        """`barrier` of the MP group."""
        self._meet(GroupKind.MP, "smp.mp_barrier()")

    def dp_barrier(self) -> None:
        """`barrier` of the DP group."""
        self._meet(GroupKind.DP, "smp.dp_barrier()")

    def pp_barrier(self) -> None:
        """`barrier` of the PP group."""
        self._meet(GroupKind.PP, "smp.pp_barrier()")

    def tp_barrier(self) -> None:
        """`barrier` of the TP group."""
        self._meet(GroupKind.TP, "smp.tp_barrier()")

    def rdp_barrier(self) -> None:
        """`barrier` of the RDP group."""
        self._meet(GroupKind.RDP, "smp.rdp_barrier()")

    # ---- messages --------------------------------------------------------------------------------

    def _try_to_pack(self, job: BaseJob, obj: Any) -> tuple[int, Parcel, TypeError | None]:
        """The object as bytes; if it does not pickle, what the others are told, and the error."""
        try:
            return _What.OBJECT, self._carrier.pack(obj), None
        except TypeError as error:
            text = f"rank {job.rank} sends no object: {error}"
            failure = TypeError(text)
            failure.__cause__ = error.__cause__
            explanation = bytearray(text.encode("utf-8", "backslashreplace"))
            return _What.EXPLANATION, Parcel(np.frombuffer(explanation, np.uint8)), failure

    def _open(self, job: BaseJob, what: int, parcel: Parcel, source: int) -> Any:
        if what == _What.EXPLANATION:
            text = parcel.stream.tobytes().decode()
            raise TypeError(f"rank {job.rank} has waited for rank {source} in vain: {text}")
        try:
            return self._carrier.unpack(parcel)
        except TypeError as error:
            raise TypeError(f"rank {job.rank}, from rank {source}: {error}") from error.__cause__

    def _send(self, job: BaseJob, obj: Any, receivers: Sequence[int]) -> None:
        what, parcel, failure = self._try_to_pack(job, obj)
        opening = _opening(parcel)
        head = _numbers(what, opening.size, len(parcel.blocks))
        # Copies: a long part is sent when its receiver asks for it, and that may be in the middle
        # of sending something to us.
        parts = (head, opening, *(block.copy() for block in parcel.blocks))
        with self._posting:
            self._forget_what_is_sent()
            if self._end_of is not job:
                self._end_of = job
                self._state.call_at_reset(self._wait_until_sent)
            self._under_way.extend(
                self._carrier.start_sending(part, receiver)
                for receiver in receivers
                for part in parts
            )
        if failure is not None:
            raise failure

    def _forget_what_is_sent(self) -> None:
        """Also raises what has kept a part from being sent, here and below."""
        done: list[Work | None] = []
        others: list[Work | None] = []
        for work in self._under_way:
            (done if work is None or work.is_completed() else others).append(work)
        self._under_way[:] = others  # before one of them raises
        for work in done:
            if work is not None:
                work.wait()

    def _wait_until_sent(self) -> None:
        deadline = time.monotonic() + _SENT_WITHIN_S
        try:
            while self._under_way and time.monotonic() < deadline:
                self._forget_what_is_sent()
                time.sleep(0.001)
        finally:
            self._under_way.clear()
            self._end_of = None

    def _take(self, job: BaseJob, source: int) -> tuple[int, Parcel]:
        head = self._receive(_HEAD * _NUMBER.itemsize, source)
        what, opening_bytes, num_blocks = head.view(_NUMBER).tolist()
        if what not in list(_What):
            raise InternalError(
                f"rank {job.rank} got a message from rank {source} that begins with {what};"
                f" expected one of smp.send(). {self._carrier.foreign}"
            )
        sizes, stream = _opened(self._receive(opening_bytes, source), num_blocks)
        return what, Parcel(stream, tuple(self._receive(size, source) for size in sizes))

    def _receive(self, nbytes: int, source: int) -> Bytes:
        part = np.empty(nbytes, np.uint8)
        self._carrier.receive(part, source)
        return part

    def _meet(self, kind: GroupKind, function: str) -> None:
        self._carrier.require(function, kind)
        self._carrier.meet(kind)


def _numbers(*numbers: int) -> Bytes:
    return np.array(numbers, _NUMBER).view(np.uint8)


def _opening(parcel: Parcel) -> Bytes:
    """The sizes of the blocks, then the pickle."""
    sizes = _numbers(*(block.size for block in parcel.blocks))
    return np.concatenate([sizes, parcel.stream])


def _opened(opening: Bytes, num_blocks: int) -> tuple[list[int], Bytes]:
    """The inverse of `_opening`."""
    sizes_bytes = num_blocks * _NUMBER.itemsize
    sizes: list[int] = opening[:sizes_bytes].view(_NUMBER).tolist()
    return sizes, opening[sizes_bytes:]


def _separated(payload: Bytes, opening_bytes: int, num_blocks: int) -> Parcel:
    """An opening and the blocks that follow it."""
    sizes, stream = _opened(payload[:opening_bytes], num_blocks)
    blocks = []
    offset = opening_bytes
    for size in sizes:
        # A copy: it begins where any element may, and does not keep the rest alive.
        blocks.append(payload[offset : offset + size].copy())
        offset += size
    return Parcel(stream, tuple(blocks))
