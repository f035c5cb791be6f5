# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table of states is whole, and a step that is not in it is an error."""

from __future__ import annotations

import enum

import pytest

from smdistributed.modelparallel.torch.pipeline.messages import states
from smdistributed.modelparallel.torch.pipeline.messages.states import (
    FrameState,
    ProgramState,
    moved,
)

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
        state = moved(state, each, "it")  # type: ignore[type-var]
        assert state is each


@pytest.mark.parametrize("kind", [FrameState, ProgramState])
def test_all_states_are_in_the_table(kind: type[enum.Enum]) -> None:
    assert all(state in states._LEGAL for state in kind)
    for state in kind:
        assert all(type(to) is kind for to in states._LEGAL[state])
    last = {FrameState.GONE, ProgramState.FAILED}
    assert all(last & states._LEGAL[state] for state in kind), "each can end"


def test_another_step_is_an_error_that_says_what_is_legal() -> None:
    with pytest.raises(RuntimeError, match=r"'sent' and cannot become 'open'; expected one of: "):
        moved(ProgramState.SENT, ProgramState.OPEN, "program 3")
    with pytest.raises(RuntimeError, match="program 3 of rank 1 is 'run' and cannot"):
        moved(FrameState.RUN, FrameState.RUNNING, "program 3 of rank 1")
