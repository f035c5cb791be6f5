# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects between ranks: `broadcast`, `send`, `recv_from`, `allgather`, and the barriers.

For what a script says now and then: settings, losses, file names, a state dict. The data of the
training has its own ways.

`send` and `broadcast` are messages to each receiver, which calls `recv_from`. A message is a head
of three numbers, an opening (the sizes of the blocks, and the pickle), then each block (`packing`).
Messages have a tag of their own, so calls of `torch.distributed` on the same groups may stand
between. Tensors travel in host memory, wherever they are.

An object that does not pickle raises a TypeError at its sender, and at the receivers too, which
would wait for it in vain otherwise. A rank that died ends the waiting with the error of the group's
backend: `SMDDPPeerLost`, and `SMDDPTimeoutError` for one that does not come.

All functions block until they are done: `send` and `broadcast` until the object may be changed
again, which can be before the other side has asked for it. Two ranks may send to each other before
either receives. Messages may be sent and received by any thread; the collectives, as all of a
group, by one at a time.

Pickles are opened, so whoever can send one can run code here. The messages use connections whose
ends have proved that they are of this job (docs/security.md); `allgather` within a group uses the
backend that the job was given, and Gloo's connections prove nothing.

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

import enum
import operator
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdistributed._common.errors import InternalError
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.job.packing import Packed, pack, unpack
from smdistributed.modelparallel.torch.job.state import Job, state

# What scripts get as `smp`; `allgather_in` is for the library alone.
__all__ = [
    "CommGroup",
    "RankType",
    "allgather",
    "barrier",
    "broadcast",
    "dp_barrier",
    "mp_barrier",
    "pp_barrier",
    "rdp_barrier",
    "recv_from",
    "send",
    "tp_barrier",
]

# "SM", and 16 bits for the library's own use. Gloo takes 32 bits with a sign.
_TAG = 0x534D_0001

_HEAD = 3  # numbers: what it is, bytes of the opening, number of blocks


class CommGroup(enum.Enum):
    """A group of ranks, seen from this one: the members of this rank's group of that kind."""

    WORLD = GroupKind.WORLD
    MP_GROUP = GroupKind.MP
    DP_GROUP = GroupKind.DP
    PP_GROUP = GroupKind.PP
    TP_GROUP = GroupKind.TP
    RDP_GROUP = GroupKind.RDP


class RankType(enum.Enum):
    """What a rank counts: the position in the world, or in this rank's group of a kind."""

    WORLD_RANK = GroupKind.WORLD
    MP_RANK = GroupKind.MP
    DP_RANK = GroupKind.DP
    PP_RANK = GroupKind.PP
    TP_RANK = GroupKind.TP
    RDP_RANK = GroupKind.RDP


class _What(enum.IntEnum):
    """What a message holds; numbers that nothing else looks like."""

    OBJECT = 0x6F626A31
    EXPLANATION = 0x6F626A32  # why there is no object


_posting = threading.Lock()  # the parts of a message follow one another
_SENT_WITHIN_S = 60.0  # what is under way at the end

_under_way: list[Any] = []  # torch's works of parts that no receiver has taken yet


class _EndOf:
    """The job at whose end they are waited for."""

    job: Job | None = None


_end_of = _EndOf()
_taking: dict[int, threading.Lock] = {}  # by sender


def broadcast(obj: Any, group: CommGroup) -> None:
    """Send an object to all other members of a group; each calls `recv_from`.

    Args:
        obj: anything that pickles, tensors on any device included.
        group: whose members get it.

    Raises:
        TypeError: the object does not pickle; the receivers raise one, too.
        ConfigError: (a ValueError) `group` is no `CommGroup`.
        SMPNotInitialized: before `smp.init()`.
    """
    job = state.require("smp.broadcast()")
    members = job.members(_kind_of(group, CommGroup, "smp.broadcast()", "group"))
    _send(job, obj, [member for member in members if member != job.rank])


def send(obj: Any, dest_rank: int, rank_type: RankType) -> None:
    """Send an object to another rank, which calls `recv_from`.

    Returns when the object has been copied: two ranks may both send first. What has not been taken
    stays here; `smp.reset()` and the end of the process wait for that, a minute at most.

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
    job = state.require("smp.send()")
    _send(job, obj, [_peer(job, dest_rank, rank_type, "smp.send()", "dest_rank")])


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """The next object that a rank sends to this one, with `send` or `broadcast`.

    Args:
        src_rank: who sends it.
        rank_type: what `src_rank` counts; need not be what the sender used.

    Returns:
        A copy of the object. Tensors that were on an accelerator are on `smp.state.device`, all
        others on the CPU.

    Raises:
        TypeError: the object does not pickle at its sender, or does not unpickle here.
        ConfigError: (a ValueError) there is no such rank, it is this one, or `rank_type` is no
            `RankType`.
        SMPNotInitialized: before `smp.init()`.
    """
    job = state.require("smp.recv_from()")
    source = _peer(job, src_rank, rank_type, "smp.recv_from()", "src_rank")
    with _taking.setdefault(source, threading.Lock()):
        what, packed = _take(job, source)
    return _open(job, what, packed, source)


def allgather(obj: Any, group: CommGroup) -> list[Any]:
    """An object of each member of a group, by rank in the group; all members call it.

    Args:
        obj: this rank's; anything that pickles, tensors on any device included.
        group: whose members take part.

    Returns:
        Copies, this rank's own included; the devices of tensors as of `recv_from`.

    Raises:
        TypeError: the object of a member does not pickle; the same on all of them. Or one does not
            unpickle here.
        ConfigError: (a ValueError) `group` is no `CommGroup`.
        SMPNotInitialized: before `smp.init()`.
        RuntimeError: inside of a step, of a group with several partitions.
    """
    return allgather_in(_kind_of(group, CommGroup, "smp.allgather()", "group"), obj)


def allgather_in(kind: GroupKind, obj: Any) -> list[Any]:
    """`allgather` for the library itself, which names this rank's groups by their kind."""
    job = _job_for(kind, "smp.allgather()")
    what, packed, failure = _try_to_pack(job, obj)
    opening = _opening(packed)
    payload = torch.cat([opening, *packed.blocks])
    head = _numbers(what, opening.numel(), len(packed.blocks), payload.numel())
    heads = [theirs.tolist() for theirs in _gather(job, kind, head)]
    padded = torch.zeros(max(theirs[-1] for theirs in heads), dtype=torch.uint8, device="cpu")
    padded[: payload.numel()] = payload
    payloads = _gather(job, kind, padded)
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
            _open(job, *told)
    return [_open(job, *told) for told in everyone]


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Return when all members of a group have entered; raises as `allgather`."""
    _meet(_kind_of(group, CommGroup, "smp.barrier()", "group"), "smp.barrier()")


def mp_barrier() -> None:
    """`barrier` of the MP group."""
    _meet(GroupKind.MP, "smp.mp_barrier()")


def dp_barrier() -> None:
    """`barrier` of the DP group."""
    _meet(GroupKind.DP, "smp.dp_barrier()")


def pp_barrier() -> None:
    """`barrier` of the PP group."""
    _meet(GroupKind.PP, "smp.pp_barrier()")


def tp_barrier() -> None:
    """`barrier` of the TP group."""
    _meet(GroupKind.TP, "smp.tp_barrier()")


def rdp_barrier() -> None:
    """`barrier` of the RDP group."""
    _meet(GroupKind.RDP, "smp.rdp_barrier()")


# ---- arguments -----------------------------------------------------------------------------------


def _kind_of(given: Any, expected: type[enum.Enum], function: str, argument: str) -> GroupKind:
    if not isinstance(given, expected):
        names = ", ".join(f"smp.{member.name}" for member in expected)
        raise ConfigError(
            f"{function} got {argument}={given!r}; expected a member of smp.{expected.__name__}:"
            f" {names}. Pass one of these; torch's process groups are for torch.distributed."
        )
    kind: GroupKind = given.value
    return kind


def _peer(job: Job, given: int, rank_type: Any, function: str, argument: str) -> int:
    """The world rank that is meant."""
    kind = _kind_of(rank_type, RankType, function, "rank_type")
    members = job.members(kind)
    try:
        index = operator.index(given)
    except TypeError:
        index = -1
    if not 0 <= index < len(members):
        raise ConfigError(
            f"{function} got {argument}={given!r}; expected an integer from 0 to"
            f" {len(members) - 1}, as rank {job.rank} counts {len(members)} ranks by"
            f" smp.{rank_type.name}: world ranks {list(members)}. Correct {argument} or rank_type."
        )
    if members[index] == job.rank:
        raise ConfigError(
            f"{function} got {argument}={given!r} by smp.{rank_type.name}, which is rank"
            f" {job.rank} itself; expected another rank. Use the object as it is."
        )
    return members[index]


# ---- messages ------------------------------------------------------------------------------------


def _try_to_pack(job: Job, obj: Any) -> tuple[int, Packed, TypeError | None]:
    """The object as bytes; if it does not pickle, what the others are told, and the error."""
    try:
        return _What.OBJECT, pack(obj), None
    except TypeError as error:
        text = f"rank {job.rank} sends no object: {error}"
        failure = TypeError(text)
        failure.__cause__ = error.__cause__
        explanation = torch.frombuffer(
            bytearray(text.encode("utf-8", "backslashreplace")), dtype=torch.uint8
        )
        return _What.EXPLANATION, Packed(explanation), failure


def _open(job: Job, what: int, packed: Packed, source: int) -> Any:
    if what == _What.EXPLANATION:
        text = bytes(packed.stream.numpy()).decode()
        raise TypeError(f"rank {job.rank} has waited for rank {source} in vain: {text}")
    try:
        return unpack(packed, job.device)
    except TypeError as error:
        raise TypeError(f"rank {job.rank}, from rank {source}: {error}") from error.__cause__


def _numbers(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _opening(packed: Packed) -> Tensor:
    """The sizes of the blocks, then the pickle."""
    sizes = _numbers(*(block.numel() for block in packed.blocks))
    return torch.cat([sizes.view(torch.uint8), packed.stream])


def _opened(opening: Tensor, num_blocks: int) -> tuple[list[int], Tensor]:
    """The inverse of `_opening`."""
    sizes_bytes = num_blocks * torch.int64.itemsize
    sizes: list[int] = opening[:sizes_bytes].view(torch.int64).tolist()
    return sizes, opening[sizes_bytes:]


def _send(job: Job, obj: Any, receivers: Sequence[int]) -> None:
    what, packed, failure = _try_to_pack(job, obj)
    opening = _opening(packed)
    head = _numbers(what, opening.numel(), len(packed.blocks))
    # Copies: a long part is sent when its receiver asks for it, and that may be in the middle of
    # sending something to us.
    parts = (head, opening, *(block.clone() for block in packed.blocks))
    with _posting:
        _forget_what_is_sent()
        if _end_of.job is not job:
            _end_of.job = job
            state.call_at_reset(_wait_until_sent)
        _under_way.extend(
            dist.isend(part, group_dst=receiver, group=job.message_group, tag=_TAG)
            for receiver in receivers
            for part in parts
        )
    if failure is not None:
        raise failure


def _forget_what_is_sent() -> None:
    """Also raises what has kept a part from being sent, here and below."""
    done: list[Any] = []
    others: list[Any] = []
    for work in _under_way:
        (done if work is None or work.is_completed() else others).append(work)
    _under_way[:] = others  # before one of them raises
    for work in done:
        if work is not None:
            work.wait()


def _wait_until_sent() -> None:
    deadline = time.monotonic() + _SENT_WITHIN_S
    try:
        while _under_way and time.monotonic() < deadline:
            _forget_what_is_sent()
            time.sleep(0.001)
    finally:
        _under_way.clear()
        _end_of.job = None


def _take(job: Job, source: int) -> tuple[int, Packed]:
    head = _receive(job, _numbers(*[0] * _HEAD), source)
    what, opening_bytes, num_blocks = head.tolist()
    if what not in list(_What):
        raise InternalError(
            f"rank {job.rank} got a message from rank {source} that begins with {what}; expected"
            f" one of smp.send(). Do not use tag {_TAG:#x} with torch.distributed, or report this."
        )
    sizes, stream = _opened(_receive(job, _room(opening_bytes), source), num_blocks)
    blocks = [_receive(job, _room(size), source) for size in sizes]
    return what, Packed(stream, tuple(blocks))


def _room(nbytes: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def _receive(job: Job, part: Tensor, source: int) -> Tensor:
    dist.recv(part, group_src=source, group=job.message_group, tag=_TAG)
    return part


# ---- collectives ---------------------------------------------------------------------------------


def _gather(job: Job, kind: GroupKind, mine: Tensor) -> list[Tensor]:
    everyone = [torch.empty_like(mine) for _ in job.members(kind)]
    dist.all_gather(everyone, mine, group=job.cpu_group(kind))
    return everyone


def _separated(payload: Tensor, opening_bytes: int, num_blocks: int) -> Packed:
    """An opening and the blocks that follow it."""
    sizes, stream = _opened(payload[:opening_bytes], num_blocks)
    blocks = []
    offset = opening_bytes
    for size in sizes:
        # A copy: it begins where any element may, and does not keep the rest alive.
        blocks.append(payload[offset : offset + size].clone())
        offset += size
    return Packed(stream, tuple(blocks))


def _meet(kind: GroupKind, function: str) -> None:
    dist.barrier(group=_job_for(kind, function).cpu_group(kind))


def _job_for(kind: GroupKind, function: str) -> Job:
    """The job, for a collective of such a group; inside of a step some have no other members."""
    if kind in (GroupKind.WORLD, GroupKind.MP, GroupKind.PP):
        return state.require_outside_of_body(function)
    return state.require(function)
