# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The life of a program, on the rank that calls it and on the rank that runs it.

On the caller's rank (`Program`); from each state it may come to FAILED:

    OPEN -------> SENT -------> ANSWERED
    calls may      |               |
    join           +-------+-------+
                           v
                       GOING_BACK <---+
                           |          | from other values
                           v          |
                       GONE_BACK -----+

On the owner's rank (`Frame`); from each state it may come to GONE:

    WAITING ----> READY ----> RUNNING ----> RUN
    for inputs                on a fiber     |
                                             v
                                  +----> READY_BACK
                                  |          |
                  from other      |          v
                  values          |      GOING_BACK
                                  |          |
                                  |          v
                                  +----- GONE_BACK
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = ["LEGAL", "FrameState", "ProgramState", "not_legal"]


class ProgramState(enum.Enum):
    """Of a program, as its caller knows it."""

    OPEN = "open"  # the next call may join it
    SENT = "sent"
    ANSWERED = "answered"  # its owner has said something after it was through
    GOING_BACK = "going back"  # its backward pass has been asked for
    GONE_BACK = "gone back"  # and has ended; another one may begin from other values
    FAILED = "failed"  # it has raised, or will never have what it needs


class FrameState(enum.Enum):
    """Of a program, on the rank that runs it."""

    WAITING = "waiting"  # for what it uses
    READY = "ready"  # to run, when it is the most urgent
    RUNNING = "running"
    RUN = "run"
    READY_BACK = "ready to go back"  # when it is the most urgent
    GOING_BACK = "going back"
    GONE_BACK = "gone back"  # another backward pass may begin from other values
    GONE = "gone"  # it has raised, or its caller will not ask for anything any more


_P, _F = ProgramState, FrameState

LEGAL: Mapping[enum.Enum, frozenset[enum.Enum]] = {
    _P.OPEN: frozenset({_P.SENT, _P.FAILED}),
    _P.SENT: frozenset({_P.ANSWERED, _P.GOING_BACK, _P.FAILED}),
    _P.ANSWERED: frozenset({_P.GOING_BACK, _P.FAILED}),
    _P.GOING_BACK: frozenset({_P.GONE_BACK, _P.FAILED}),
    _P.GONE_BACK: frozenset({_P.GOING_BACK, _P.FAILED}),
    _P.FAILED: frozenset({_P.FAILED}),  # what it uses has failed, and then so has it
    _F.WAITING: frozenset({_F.READY, _F.GONE}),
    _F.READY: frozenset({_F.RUNNING, _F.GONE}),
    _F.RUNNING: frozenset({_F.RUN, _F.GONE}),
    _F.RUN: frozenset({_F.READY_BACK, _F.GONE}),
    _F.READY_BACK: frozenset({_F.GOING_BACK, _F.GONE}),
    _F.GOING_BACK: frozenset({_F.GONE_BACK, _F.GONE}),
    _F.GONE_BACK: frozenset({_F.READY_BACK, _F.GONE}),
    _F.GONE: frozenset({_F.GONE}),  # dropped while it ran, and then it has raised
}


def not_legal(state: enum.Enum, to: enum.Enum, what: str) -> RuntimeError:
    """The error of a step that is not in the table; a defect of this library.

    Args:
        what: whose state it is.
    """
    legal = ", ".join(each.value for each in LEGAL[state])
    return RuntimeError(
        f"{what} is {state.value!r} and cannot become {to.value!r}; expected one of: {legal}."
        " This is a defect of smdistributed: please report it with this message."
    )
