# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Rank 0 does something for all ranks, which do with it what it asks their model for.

A callback of Keras that keeps files reads and writes some by itself, and calls `save_weights` or
`load_weights` of its model in between. The files are rank 0's; the calls are those of all ranks.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smdistributed.dataparallel.exceptions import SMDDPError
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.checkpoints.together import (
    meet,
    raise_as_on,
    that_pickles,
)
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline

__all__ = ["announced", "lead"]


@dataclasses.dataclass(frozen=True)
class _Asks:
    """Rank 0 calls a method of its model: all ranks call theirs.

    Attributes:
        name: of the method.
        args, kwargs: that it is called with.
    """

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _HasDone:
    """Rank 0 has done what it does for all.

    Attributes:
        result: what it returned.
        error: what it raised, or None.
    """

    result: Any
    error: BaseException | None


class _Leading:
    """What this rank leads in: what does it, as a script calls it; None if nothing."""

    call: str | None = None


_now = _Leading()


def lead(call: str, model: Any, do: Callable[[], Any]) -> Any:
    """Rank 0 does something for all ranks; a collective of the world.

    Args:
        call: what is done, as a script calls it; the same on all ranks.
        model: what is asked of rank 0's model meanwhile is done with those of all ranks.
        do: called on rank 0.

    Returns:
        On all ranks what it returned, which pickles.

    Raises:
        Exception: on all ranks what it raised.
        SMDDPMismatch, SMDDPTimeoutError, SMDDPPeerLost: another rank does not come, or is gone.
    """
    if state.job.rank != 0:
        return _follow(call, model)
    driver = current_pipeline(call).driver
    before = driver.num_failures
    _now.call = call
    try:
        result = do()
    except BaseException as error:
        _now.call = None
        if driver.num_failures == before and not _has_ended_all(error):  # else they have heard
            with contextlib.suppress(SMDDPError, StepAborted):
                meet(call, _HasDone(None, that_pickles(error)))
        raise
    _now.call = None
    meet(call, _HasDone(result, None))
    return result


def announced(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A collective method of a model which, while rank 0 leads, it calls on all ranks.

    Args:
        name: of the method.
        method: takes the model, Keras' method, and the arguments.
    """

    @functools.wraps(method)
    def call(model: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        if _now.call is not None:
            # Rank 0 alone looks at `options`, which need not pickle.
            told = {key: value for key, value in kwargs.items() if key != "options"}
            meet(_now.call, _Asks(name, args, told))
        return method(model, original, *args, **kwargs)

    return call


def _follow(call: str, model: Any) -> Any:
    while True:
        said: _Asks | _HasDone = meet(call, None)[0]
        if isinstance(said, _HasDone):
            if said.error is not None:
                raise_as_on(0, said.error)
            return said.result
        try:
            getattr(model, said.name)(*said.args, **said.kwargs)
        except Exception as error:
            if _has_ended_all(error):
                raise
            # Raised on rank 0, too, which may know what to do.


def _has_ended_all(error: BaseException) -> bool:
    """Whether ranks have lost each other, or have been told."""
    return isinstance(error, SMDDPError | StepAborted)
