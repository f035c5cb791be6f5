# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What all ranks do together: what fails on one of them fails on all, for the same reason.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from smdistributed.dataparallel.exceptions import (
    SMDDPMismatch,
    SMDDPPeerLost,
    SMDDPTimeoutError,
)
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import SMPError, StepAborted
from smdistributed.modelparallel.tensorflow.job.communication import allgather_in
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.run.errors import text_of, with_line
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline

__all__ = [
    "CheckpointError",
    "known_to_all",
    "meet",
    "one_method",
    "raise_as_on",
    "that_pickles",
    "together",
    "within",
]

ErrorT = TypeVar("ErrorT", bound=BaseException)

# An attribute of errors that all ranks raise.
_IS_KNOWN = "_smp_is_known_to_all"
# Threads of this rank call such methods one after the other, or their exchanges would mix. What has
# begun, as a restore that ends in a step, does not wait for it: other ranks wait for that.
one_method = threading.RLock()


class CheckpointError(SMPError, ValueError):
    """What a checkpoint has and what is here do not belong together; nothing was changed."""

    __init__ = Exception.__init__


setattr(CheckpointError, _IS_KNOWN, True)  # all ranks raise it, for what all have heard


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


def within(call: str, has_begun: bool = False) -> _Within:
    """While it is open, this rank is in a method that all ranks call.

    Errors about other ranks say what this one was doing. What ends the method on this rank alone,
    such as Ctrl-C or a lack of memory, ends it on all. When they have begun, that ends their
    groups, too; but for what all ranks raise (`known_to_all`).

    Args:
        call: the method, as a script calls it.
        has_begun: no agreement in it shows that the others have begun; they have.
    """
    return _Within(call, has_begun)


class _Within:
    """No generator: Ctrl-C just when one is entered would end it late."""

    def __init__(self, call: str, has_begun: bool) -> None:
        self._call = call
        self._has_begun = has_begun
        self._driver = current_pipeline(call).driver
        self._begun, self._failures = self._driver.number, self._driver.num_failures

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        call, driver = self._call, self._driver
        if isinstance(error, SMDDPMismatch | SMDDPPeerLost | SMDDPTimeoutError):
            if call not in str(error):
                raise with_line(error, call) from None
        elif error is None:
            pass
        elif not self._has_begun and driver.agreed <= self._begun:  # the others wait for this rank
            if driver.num_failures == self._failures:
                driver.refuse(error)
        elif not isinstance(error, StepAborted) and not hasattr(error, _IS_KNOWN):
            _end_groups(call, error)


def _end_groups(call: str, error: BaseException) -> None:
    """The other ranks, which wait in operations of the job's groups, hear why. Raises nothing."""
    for communicator in set(state.job.communicators.values()):
        with contextlib.suppress(Exception):  # it has ended before
            communicator.abort(f"{call} ended on rank {state.job.rank}: {text_of(error)}")


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
        failure = known_to_all(error)
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
    raise known_to_all(error)


def known_to_all(error: ErrorT) -> ErrorT:
    """An error that all ranks raise: it ends what they do together, and not their groups."""
    setattr(error, _IS_KNOWN, True)
    return error


def that_pickles(error: BaseException | None) -> BaseException | None:
    """An error as it can be sent to other ranks, which are not interrupted, and do not exit."""
    if error is not None and not isinstance(error, Exception):
        driver = current_pipeline("this method").driver
        return StepAborted(driver.text_for_others(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
