# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What all ranks do together: what fails on one of them fails on all, for the same reason.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from smdistributed.dataparallel.exceptions import (
    SMDDPMismatch,
    SMDDPPeerLost,
    SMDDPTimeoutError,
)
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.tensorflow.job.communication import allgather_in
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.run.errors import with_line
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline

__all__ = ["CheckpointError", "meet", "raise_as_on", "that_pickles", "together", "within"]


class CheckpointError(SMPError, ValueError):
    """What a checkpoint has and what is here do not belong together; nothing was changed."""

    __init__ = Exception.__init__


def meet(call: str, value: Any, kind: GroupKind = GroupKind.WORLD) -> list[Any]:
    """What each rank of a group brings, by rank; a collective that begins a method.

    The ranks of a pipeline find out at once if one of them does something else.

    Args:
        call: the method, as a script calls it.
        value: any that pickles.
        kind: the group; the MP group or the world.

    Raises:
        SMDDPMismatch: another rank does something else.
        SMDDPTimeoutError, SMDDPPeerLost: another rank does not come, or is gone.
    """
    does = f"calls {call} (call it on all ranks)"
    brought = current_pipeline(call).driver.agree(does, value)
    if kind is GroupKind.WORLD and len(brought) < state.job.size:
        try:
            brought = allgather_in(kind, value)
        except (SMDDPPeerLost, SMDDPTimeoutError) as error:
            raise type(error)(f"This rank {does}: {error}") from error
    return brought


@contextlib.contextmanager
def within(call: str) -> Iterator[None]:
    """While it is open, errors about other ranks say what this one was doing.

    Args:
        call: the method, as a script calls it.
    """
    try:
        yield
    except (SMDDPMismatch, SMDDPPeerLost, SMDDPTimeoutError) as error:
        if call in str(error):
            raise
        raise with_line(error, call) from None


def together(do: Callable[[], Any], kind: GroupKind = GroupKind.WORLD) -> Any:
    """Does something that may fail on one rank; a collective.

    Returns:
        What it returned on this rank.

    Raises:
        Exception: what it raised on this rank, or else on the first one of the group.
    """
    failure: BaseException | None = None
    result: Any = None
    try:
        result = do()
    except BaseException as error:  # the others wait, also when this rank is interrupted
        failure = error
    failures: list[BaseException | None] = allgather_in(kind, that_pickles(failure))
    if failure is not None:
        raise failure
    for member, theirs in zip(state.job.members(kind), failures, strict=True):
        if theirs is not None:
            raise_as_on(member, theirs)
    return result


def raise_as_on(member: int, error: BaseException) -> NoReturn:
    """Raises what another rank has raised."""
    error.add_note(f"raised on rank {member}, and so on rank {state.job.rank}.")
    raise error


def that_pickles(error: BaseException | None) -> BaseException | None:
    """An error as it can be sent to other ranks."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
