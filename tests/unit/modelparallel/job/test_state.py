# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a process knows of its job, without a framework (specification, sections 0, 2 and 5)."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import pytest

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind, Topology
from smdistributed.modelparallel.exceptions import SMPNotInitialized
from smdistributed.modelparallel.job.state import BaseJob, BaseState

JOB = BaseJob(config=Config(), topology=Topology(4, 2), rank=2, local_rank=0, local_size=2)
ALONE = BaseJob(config=Config(), topology=Topology(1, 1), rank=0, local_rank=0, local_size=1)


class State(BaseState[BaseJob]):
    """With something of a framework's."""

    def __init__(self) -> None:
        super().__init__()
        self.of_the_framework: Any = None


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def state(said: list[str]) -> State:
    made = State()
    leaving = contextlib.ExitStack()
    leaving.callback(said.append, "the groups are left")
    made.enter(JOB, leaving)
    made.model = made.of_the_framework = "something"
    return made


def test_before_init_each_question_names_itself() -> None:
    state = State()
    assert not state.initialized
    for name in ("job", "cfg", "topology", "rank", "size", "local_rank", "local_size"):
        with pytest.raises(SMPNotInitialized, match=rf"smp\.state\.{name} was used before smp"):
            getattr(state, name)
    for name in ("members", "rank_in", "size_of"):
        with pytest.raises(SMPNotInitialized, match=rf"smp\.state\.{name}\(\) was used before"):
            getattr(state, name)(GroupKind.PP)
    state.reset()


def test_who_has_a_pipeline_and_who_the_whole_model() -> None:
    assert (JOB.has_pipeline, JOB.holds_whole_model) == (True, False)
    assert (ALONE.has_pipeline, ALONE.holds_whole_model) == (False, True)


def test_reset_calls_the_last_one_first_and_forgets_all(state: State, said: list[str]) -> None:
    state.call_at_reset(lambda: said.append("first"))
    state.call_at_reset(lambda: said.append(f"second, as rank {state.rank}"))
    state.reset()
    assert said == ["second, as rank 2", "first", "the groups are left"]
    assert (state.initialized, state.model, state.of_the_framework) == (False, None, None)
    state.reset()
    assert len(said) == 3


def test_reset_does_all_else_before_it_raises(state: State, said: list[str]) -> None:
    def fail() -> None:
        raise RuntimeError("a file is gone")

    state.call_at_reset(fail)
    with pytest.raises(RuntimeError, match="a file is gone"):
        state.reset()
    assert said == ["the groups are left"]
    assert not state.initialized


def test_the_end_of_a_process_resets(state: State, said: list[str]) -> None:
    state.reset_at_exit()
    assert said == ["the groups are left"]
    State().reset_at_exit()


def test_the_end_of_a_process_raises_nothing(state: State) -> None:
    def fail() -> None:
        raise RuntimeError

    state.call_at_reset(fail)
    state.reset_at_exit()
    assert not state.initialized


def test_after_an_error_the_end_of_a_process_waits_for_nobody(
    state: State, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", RuntimeError(), raising=False)
    state.reset_at_exit()
    assert not said


def test_a_forked_child_leaves_nothing(
    state: State, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    state.reset_at_exit()
    assert not said
