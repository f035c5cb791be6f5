# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that succeed together or fail together, and who of them looks after a directory."""

from __future__ import annotations

import contextlib
import os
import secrets
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError, SMPError
from smdistributed.modelparallel.torch.job.communication import allgather_in
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.saving.checkpoints.directory import MARK

__all__ = ["WaitingLoad", "agreed", "keeper_of", "load_all", "load_together", "together", "united"]

T = TypeVar("T")

_END = ". \n"
"""What errors' texts may end with, and is not followed by a semicolon."""


class WaitingLoad(NamedTuple):
    """A load that waits until the model is partitioned; equal on all ranks, or none can be done.

    Attributes:
        owner: whose it is, the same on all ranks: "the model", "optimizer 2".
        what: is loaded: "state" or "fp32 weights".
        is_partial: ranks have parts, which are merged.
        is_same_partition: they have parts, which are not: `same_partition_load`.
    """

    owner: str
    what: str
    is_partial: bool
    is_same_partition: bool = False

    def __str__(self) -> str:
        part = "a part of the " if self.is_partial else "the "
        option = " with same_partition_load" if self.is_same_partition else ""
        return f"{part}{self.what} of {self.owner}{option}"

    @property
    def doing(self) -> str:
        """For messages."""
        return f"loading what has waited ({self})"


def load_all(waiting: Sequence[WaitingLoad], load: Callable[[], object]) -> list[Exception]:
    """Loads what has waited, one after the other. What fails does not keep the rest from it.

    Args:
        waiting: on this rank.
        load: loads the first of those.

    Returns: the failures, with notes that say of what.
    """

    def load_one(which: WaitingLoad) -> None:
        try:
            load()
        except Exception as error:
            error.add_note(f"{which.doing} failed.")
            raise

    return _failures(waiting, load_one)


def _failures(
    waiting: Sequence[WaitingLoad], load: Callable[[WaitingLoad], object]
) -> list[Exception]:
    failures: list[Exception] = []
    for which in waiting:
        try:
            load(which)
        except Exception as error:
            failures.append(error)
    return failures


def united(failures: list[Exception]) -> Exception:
    """The first failure, to be raised, with the others in its notes. Empties the list."""
    first, *others = failures
    failures.clear()  # the frame that holds it is in their tracebacks
    for each in others:
        first.add_note("Beside it: " + "".join(traceback.format_exception_only(each)).rstrip())
    return first


def load_together(
    job: Job,
    what: str,
    waiting: Callable[[], Sequence[WaitingLoad]],
    load: Callable[[], object],
    forget: Callable[[], None],
) -> list[Exception]:
    """Loads what has waited on every rank, one after the other; nothing waits any more then.

    A collective of all ranks, blocking. What fails does not keep the rest from being loaded.

    Args:
        job: what this process knows of the others.
        what: is loaded, for messages.
        waiting: returns what waits on this rank, in order; must be equal on all ranks.
        load: loads the first of those; may be collective.
        forget: drops all of those.

    Returns: the failures, here or on another rank; one SMPError if ranks have different things to
        load, of which nothing was loaded then.
    """
    try:
        lists = together(job, f"loading {what}", waiting)
    except Exception as error:
        forget()
        return [error]
    for rank, those in enumerate(lists):
        if those != lists[0]:
            forget()
            return [
                SMPError(
                    f"{what} were to be loaded: {_listed(lists[0])} on rank 0 and"
                    f" {_listed(those)} on rank {rank}; expected the same on all ranks, which load"
                    " together. None was loaded. Load on all ranks what is loaded on one, in the"
                    " same way (a rank without a part of it: {'_smp_is_partial': True}), and make"
                    " the same optimizers of the model's parameters, in the same order, on all."
                )
            ]
    return _failures(lists[0], lambda which: together(job, which.doing, load))


def _listed(those: Sequence[WaitingLoad]) -> str:
    return ", ".join(map(str, those)) or "none"


def together(
    job: Job, what: str, action: Callable[[], T], *, undo: Callable[[], None] | None = None
) -> list[T]:
    """Lets each rank do something, and raises on all of them if it failed on one.

    A collective of all ranks, blocking; also a barrier.

    Args:
        job: what this process knows of the others.
        what: they are doing, for messages.
        action: this rank's. It may itself be collective, if nothing that can fail on some ranks
            comes before. What it returns must be small and pickle.
        undo: called where the action succeeded, once it is known to have failed elsewhere; must
            not raise.

    Returns: what the actions returned, by rank.

    Raises:
        SMPError: it failed elsewhere only; names the first of those ranks, and why.
        Exception: what the action raised here, with a note that names this rank.
    """
    result: T | None = None
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:
        failure = error
    reason = "" if failure is None else f"{type(failure).__name__}: {failure}"
    answers = allgather_in(GroupKind.WORLD, (result, reason))
    if failure is not None:
        failure.add_note(f"{what} failed on rank {job.rank}, and so on all ranks.")
        raise failure
    for rank, (_, reason) in enumerate(answers):
        if reason:
            if undo is not None:
                undo()
            raise SMPError(
                f"{what} failed on rank {rank}: {reason.rstrip(_END)}; expected it to succeed on"
                f" all ranks. Read the log of rank {rank}."
            )
    return [each for each, _ in answers]


def agreed(job: Job, what: str, check: Callable[[], dict[str, Any]]) -> None:
    """Raises on all ranks unless all pass the same arguments. A collective of all ranks, blocking.

    Args:
        job: what this process knows of the others.
        what: they are doing, for messages.
        check: returns this rank's arguments by name, or raises; they must be small, and pickle.

    Raises:
        ConfigError: (a ValueError) they differ.
        SMPError, Exception: as of `together`.
    """
    answers = together(job, what, check)
    for rank, answer in enumerate(answers):
        for name, value in answer.items():
            if value != answers[0][name]:
                raise ConfigError(
                    f"{what} got {name} {value!r} on rank {rank}, and {answers[0][name]!r} on rank"
                    " 0; expected the same on all ranks. Pass what does not depend on the rank."
                )


def keeper_of(job: Job, what: str, path: str) -> int:
    """The lowest rank that sees the same directory; a collective of all ranks, blocking.

    One directory may be shared by all hosts, or each host may have one of its own under the same
    path. What is there decides: a rank leaves a mark, and those who find it are with that rank.
    Costs two small collectives for each directory.

    Raises:
        SMPError, OSError: a mark cannot be made, or is not seen by who made it; on all ranks.
    """
    # A name that nobody has asked for: network file systems remember what they have answered.
    name = together(job, what, lambda: f".{secrets.token_hex(8)}{MARK}")[0]
    mark = os.path.join(path, name)
    keepers: list[int | None] = [None] * job.size
    while None in keepers:
        candidate = keepers.index(None)

        def leave_mark(is_mine: bool = job.rank == candidate) -> None:
            if is_mine:
                with open(mark, "xb"):
                    pass

        together(job, what, leave_mark)
        try:
            seen = together(job, what, lambda: os.path.exists(mark))
        finally:
            if job.rank == candidate:
                with contextlib.suppress(OSError):
                    os.unlink(mark)
        if not seen[candidate]:
            raise SMPError(
                f"{what} has made the file {mark} on rank {candidate}, which did not find it then;"
                " expected a directory that shows its files and that nobody else tidies. Look at"
                " its file system, or pass another path."
            )
        for rank, sees in enumerate(seen):
            if sees and keepers[rank] is None:
                keepers[rank] = candidate
    keeper = keepers[job.rank]
    assert keeper is not None
    return keeper
