# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table of states is whole, and a step that is not in it is an error."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, cast

import pytest

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.torch.pipeline.callee.frames import Frame
from smdistributed.modelparallel.torch.pipeline.caller.programs import CallingActivity, Program
from smdistributed.modelparallel.torch.pipeline.messages import messages, states
from smdistributed.modelparallel.torch.pipeline.messages.states import FrameState, ProgramState

LIVES: list[list[FrameState] | list[ProgramState]] = [
    [FrameState[name] for name in ("WAITING", "READY", "RUNNING", "RUN", "READY_BACK",
     "GOING_BACK", "GONE_BACK", "READY_BACK", "GOING_BACK", "GONE_BACK", "GONE")],
    [FrameState[name] for name in ("WAITING", "READY", "RUNNING", "GONE", "GONE")],
    [ProgramState[name] for name in ("OPEN", "SENT", "ANSWERED", "GOING_BACK", "GONE_BACK",
     "GOING_BACK", "FAILED")],
    [ProgramState[name] for name in ("OPEN", "SENT", "GOING_BACK", "GONE_BACK")],
]  # fmt: skip


@pytest.mark.parametrize("life", LIVES, ids=range(len(LIVES)))
def test_a_life_is_legal(life: list[enum.Enum]) -> None:
    state = life[0]
    for each in life[1:]:
        assert each in states.LEGAL[state]
        state = each


@pytest.mark.parametrize("kind", [FrameState, ProgramState])
def test_all_states_are_in_the_table(kind: type[enum.Enum]) -> None:
    assert all(state in states.LEGAL for state in kind)
    for state in kind:
        assert all(type(to) is kind for to in states.LEGAL[state])
    last = {FrameState.GONE, ProgramState.FAILED}
    assert all(last & states.LEGAL[state] for state in kind), "each can end"


def _program() -> Program:
    activity = CallingActivity(Task(Phase.FORWARD, 0), seed=1)
    return Program(cast(Any, None), activity, 1, 3, 0, True, "a layer")


def _frame() -> Frame:
    task = Task(Phase.FORWARD, 0)
    return Frame(1, messages.Call(3, task, 1, True, [], [], [], [], [], [], b""))


@pytest.mark.parametrize(
    ("make", "legal", "illegal", "text"),
    [
        (
            _program,
            ProgramState.SENT,
            ProgramState.OPEN,
            "program 3, with a layer, is 'sent' and cannot become 'open'; expected one of: ",
        ),
        (
            _frame,
            FrameState.READY,
            FrameState.RUN,
            "program 3 of rank 1 is 'ready' and cannot become 'run'; expected one of: ",
        ),
    ],
)
def test_another_step_is_an_error_that_says_what_is_legal(
    make: Callable[[], Any], legal: enum.Enum, illegal: enum.Enum, text: str
) -> None:
    it = make()
    it.move_to(legal)
    assert it.state is legal
    with pytest.raises(RuntimeError, match=text):
        it.move_to(illegal)
    assert it.state is legal, "it stays what it was"
