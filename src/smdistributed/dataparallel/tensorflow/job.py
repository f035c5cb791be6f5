# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""This process's place in the job: who it is, the group of all ranks, and groups of some.

One state for the whole process: `init` through `smdistributed.dataparallel.tensorflow` and through
its `keras` module count as one.

Source: dataparallel specification, sections 3 and 7.2.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import operator
import os
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from smdistributed import collectives
from smdistributed._common.log import get_logger
from smdistributed.collectives import _native
from smdistributed.dataparallel.engine_errors import ENGINE_ERRORS, documented_errors
from smdistributed.dataparallel.exceptions import (
    SMDDPAlreadyInitialized,
    SMDDPConfigInvalid,
    SMDDPMismatch,
    SMDDPNotInitialized,
)
from smdistributed.dataparallel.tensorflow.groups import WORLD, Group, shown_ranks
from smdistributed.dataparallel.trace.session import session as trace_session

__all__ = [
    "UNEVEN_BATCHES",
    "close_group",
    "init",
    "is_initialized",
    "leave_at_once",
    "local_rank",
    "local_size",
    "new_group",
    "rank",
    "resolve_group",
    "shutdown",
    "size",
]

_GROUP_NAME = "default"

UNEVEN_BATCHES = "give all ranks equally many: the same number of files, and drop_remainder=True"
"""What reports of the engine say to do about these, in scripts of TensorFlow."""


@dataclasses.dataclass(frozen=True)
class _Job:
    world: Group
    local_rank: int
    local_size: int
    # Those of some ranks, by number: which of them are open.
    groups: dict[int, Group] = dataclasses.field(default_factory=dict)


# A graph may outlive the group that it was made for, so no number is given twice.
_numbers = itertools.count(WORLD + 1)
_lock = threading.Lock()
# One group at a time: several messages make one.
_making = threading.Lock()
_job: _Job | None = None


def init() -> None:
    """Joins the group of all processes of this job. Blocks until all have met.

    Works under any launcher (smddprun, torchrun's variables, mpirun, srun, Ray, SageMaker); in a
    process that no launcher started the group has this one rank.

    Raises:
        SMDDPAlreadyInitialized: (a RuntimeError) it has been called, here or through `keras`.
        SMDDPConfigInvalid: a variable has a value that cannot work.
        SMDDPTimeoutError, SMDDPPeerLost: the ranks did not all meet.
    """
    global _job
    from smdistributed.dataparallel.tensorflow import operations
    from smdistributed.dataparallel.tensorflow.operations.uncaught import show_documented_errors

    with _lock:
        if _job is not None:
            raise SMDDPAlreadyInitialized(
                "init() called more than once. smdistributed.dataparallel is already initialized."
            )
        trace_session.start_from_environment()
        _native.set_uneven_batches_advice(UNEVEN_BATCHES)
        with documented_errors():
            communicator = collectives.init(name=_GROUP_NAME, errors=ENGINE_ERRORS)
        world = Group(tuple(range(communicator.world_size)), WORLD, communicator)
        try:
            operations.begin(communicator)
        except BaseException:
            communicator.close()
            raise
        show_documented_errors()
        alone = world.size() == 1
        _job = _Job(
            world,
            local_rank=0 if alone else int(os.environ["LOCAL_RANK"]),
            local_size=1 if alone else int(os.environ["LOCAL_WORLD_SIZE"]),
        )
        trace_session.note_job(world.rank(), world.size())
        trace_session.note_group(_GROUP_NAME, range(world.size()))
        if world.rank() == 0:
            get_logger().info("smddp for TensorFlow: %d ranks", world.size())


def is_initialized() -> bool:
    """Whether this process is in a job: `init()` was called, and `shutdown()` was not."""
    return _job is not None


def shutdown() -> None:
    """Waits for all ranks, then leaves all groups; `init()` may be called again.

    Optional: a process may end without it. Without a group this does nothing. After a mismatch,
    which has been raised where it was found, it leaves without waiting and without an error.
    """
    with _lock:
        if _job is None:
            return
        has_failed = any(
            record["group"] == _GROUP_NAME and record["state"].startswith("failed")
            for record in collectives.flight_record()
        )
        try:
            _job.world.communicator("shutdown()").barrier()
        except SMDDPMismatch:
            if not has_failed:  # else it has been told
                raise
        finally:
            _leave(_job)


def leave_at_once(group: Group | None = None) -> None:
    """`close_group`, or `shutdown` if none is given, without waiting for the other ranks.

    A rank that still waits for this one gets an error. For who ends more than this job.
    """
    with _lock:
        if _job is None:
            return
        if group is None:
            _leave(_job)
        else:
            _leave_group(_job, group)


def _leave(job: _Job) -> None:
    global _job
    from smdistributed.dataparallel.tensorflow import operations

    operations.end()
    for group in [*job.groups.values(), job.world]:
        group.leave()
    _job = None


def _leave_group(job: _Job, group: Group) -> None:
    from smdistributed.dataparallel.tensorflow import operations

    if job.groups.pop(group.number, None) is not None and group.included():
        operations.close_group(group.number)
        group.leave()


def new_group(ranks: Iterable[int], *, name: str | None = None) -> Group:
    """Makes a group of some ranks of the job. All ranks call it, blocking until all have come.

        pairs = [new_group([0, 1]), new_group([2, 3])]     # on all ranks
        mine = new_group([0, 1] if rank() < 2 else [2, 3])  # the same in one call
        allreduce(tensor, group=mine)

    Every function that communicates takes `group=`; the others are not waited for. Groups may have
    ranks in common. Make them in one order on all ranks: of two calls with the same ranks their
    names alone tell which is which.

    In `tf.function` the operations of each group keep the order of the program; those of different
    groups wait for each other only where one needs the other's result. (Where Python functions
    stand in for the kernels, all operations keep one order.)

    Args:
        ranks: in the job, at least one, each once, in any order. Ranks may ask for different groups
            in one call, as long as no rank is in two of them; all members of a group pass the same
            ranks. A rank that is in none passes any of the groups, and gets it as one that it does
            not belong to.
        name: of this call, the same on all members; they compare it.

    Returns:
        The group; `group.included()` says whether this process is in it.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) on all ranks: no rank, one twice, or one that there is
            not, on some rank.
        SMDDPMismatch: on all ranks: members of a group have passed different ranks or names.
        SMDDPPeerLost: on the others, if a rank fails to make it, for want of descriptors say. Then
            the group of all ranks has ended as well.

    Source: our choice.
    """
    with _making:
        return _made(_require("new_group()"), ranks, name)


def _made(job: _Job, ranks: Iterable[int], name: str | None) -> Group:
    communicator = job.world.communicator("new_group()")
    problem = ""
    chosen: tuple[int, ...] = ()
    try:
        chosen = _checked(ranks, job.world.size())
    except SMDDPConfigInvalid as error:
        problem = str(error)
    _require_agreement(communicator, chosen, name or "", problem)
    is_member = communicator.rank in chosen
    try:
        # Messages count the ranks within the group: they are to say which of the job these are.
        note = f" of {shown_ranks(chosen)}"
        made = communicator.split(chosen[0] if is_member else None, note=note)
    except BaseException as error:
        # The others wait for this rank, and would be told of the next call that it happens to make.
        communicator.abort(f"new_group() failed on it: {error}")
        raise
    group = Group(chosen, next(_numbers), made)
    with _lock:
        job.groups[group.number] = group
    if made is not None:
        _open(group, made)
    return group


def close_group(group: Any) -> None:
    """Leaves a group that `new_group` made, after all of its members have come.

    Optional: `shutdown()` leaves all. Operations on it fail from now on. On a rank that is no
    member, and for a group that has been left, this does nothing.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is no group, or that of all ranks.

    Source: our choice.
    """
    from smdistributed.dataparallel.tensorflow import operations

    if not isinstance(group, Group) or group.number == WORLD:
        raise SMDDPConfigInvalid(
            f"close_group() got {group!r}; expected what new_group() has returned. To leave the"
            " group of all ranks, call shutdown()."
        )
    with _lock:
        job = _job
        if job is None or job.groups.pop(group.number, None) is None or not group.included():
            return
    try:
        group.communicator("close_group()").barrier()
    finally:
        operations.close_group(group.number)
        group.leave()


def resolve_group(group: Any, caller: str) -> Group:
    """The group that a function is to use, which this process is a member of.

    Args:
        group: as it was given to it; None: all ranks. Or a function that gives one of these when it
            is needed, for front ends that check the job in words of their own.
        caller: for messages.

    Raises:
        SMDDPNotInitialized: (a RuntimeError) before `init()`.
        SMDDPConfigInvalid: (a ValueError) it is no group; has been left; has not this process.
    """
    if inspect.isfunction(group):
        group = group()
    job = _require(caller)
    if group is None or group is job.world:
        return job.world
    if not isinstance(group, Group):
        raise SMDDPConfigInvalid(
            f"{caller} got group={group!r}; expected what new_group() has returned, or None for all"
            " ranks. Pass one of these."
        )
    if job.groups.get(group.number) is not group:
        raise group.has_been_left(caller)
    group.communicator(caller)
    return group


def size() -> int:
    """Number of processes of the job."""
    return _require("size()").world.size()


def rank() -> int:
    """Rank of this process among all of the job, 0 to `size() - 1`."""
    return _require("rank()").world.rank()


def local_size() -> int:
    """Number of processes of the job on this host."""
    return _require("local_size()").local_size


def local_rank() -> int:
    """Rank of this process among those on its host; the GPU it should use."""
    return _require("local_rank()").local_rank


def _require(caller: str) -> _Job:
    job = _job
    if job is None:
        raise SMDDPNotInitialized(
            f"{caller} was called before init(); expected a process that has joined its job. Call"
            " smdistributed.dataparallel.tensorflow.init() first, once per process."
        )
    return job


def _checked(ranks: Any, world_size: int) -> tuple[int, ...]:
    """In ascending order."""
    try:
        given = sorted(operator.index(each) for each in ranks)
    except TypeError:
        given = []
    is_each_once = len(set(given)) == len(given)
    if given and is_each_once and all(0 <= each < world_size for each in given):
        return tuple(given)
    raise SMDDPConfigInvalid(
        f"new_group() got {ranks!r}; expected ranks of this job, 0 to {world_size - 1}, each once,"
        " and at least one. Pass them as a list."
    )


def _require_agreement(
    communicator: collectives.Communicator, chosen: tuple[int, ...], name: str, problem: str
) -> None:
    """Raises on all ranks what is wrong on any of them."""
    digest = hashlib.sha256(repr((chosen, name)).encode()).digest()[:7]
    mine = 0 if problem else int.from_bytes(digest) + 1
    passed = np.empty(communicator.world_size, np.int64)
    communicator.all_gather(passed, np.array([mine], np.int64))
    if problem:
        raise SMDDPConfigInvalid(problem)
    unusable = np.flatnonzero(passed == 0)
    if unusable.size:
        raise SMDDPConfigInvalid(
            f"new_group(): rank {unusable[0]} has passed what is no list of ranks, as its own error"
            " says; expected a group on every rank. Correct it there."
        )
    others = [rank for rank in chosen if passed[rank] != mine]
    first = np.array([min(others, default=communicator.world_size)], np.int64)
    communicator.all_reduce(first, collectives.ReduceOp.MIN)
    if others:
        raise SMDDPMismatch(
            f"new_group(): this rank, {communicator.rank}, has passed the ranks {list(chosen)}"
            f"{f' and the name {name!r}' if name else ''}, and rank {others[0]}, one of these, has"
            " passed other ones; expected the same on all members of a group. Let all ranks pass"
            " one list, or each the list that it is in, in the same order of calls."
        )
    if first[0] < communicator.world_size:
        raise SMDDPMismatch(
            f"new_group(): rank {first[0]} has passed other ranks than one that counts it as a"
            " member, as the error of that one says; expected the same on all members of a group."
            " Let all ranks pass one list, or each the list that it is in."
        )


def _open(group: Group, communicator: collectives.Communicator) -> None:
    from smdistributed.dataparallel.tensorflow import operations

    try:
        operations.open_group(group.number, communicator)
    except BaseException:
        communicator.close()
        raise
    trace_session.note_group(communicator.name, group.ranks)
