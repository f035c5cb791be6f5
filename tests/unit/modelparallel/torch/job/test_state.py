# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The one object that knows what this process knows of its job (specification, section 5)."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
import torch

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import Coordinates, GroupKind, Topology
from smdistributed.modelparallel.exceptions import SMPNotInitialized
from smdistributed.modelparallel.torch import state_mod
from smdistributed.modelparallel.torch.job.state import Job, State

GROUPS: dict[GroupKind, Any] = {kind: object() for kind in GroupKind}
MESSAGES: Any = object()


def job(rank: int = 5, **parameters: Any) -> Job:
    return Job(
        config=Config.parse({"ddp": True, **parameters}, {}),
        topology=Topology(8, 2, 2),
        rank=rank,
        local_rank=1,
        local_size=4,
        device=torch.device("cpu"),
        groups=GROUPS,
        message_group=MESSAGES,
    )


@pytest.fixture
def state() -> State:
    """Of a job of eight."""
    made = State()
    made.enter(job(microbatches=4, of_the_script="x"), contextlib.ExitStack())
    return made


def test_it_is_one_object_under_all_its_names() -> None:
    assert smp.state is state_mod.state


def test_it_knows_the_place_of_this_rank(state: State) -> None:
    assert state.initialized
    assert (state.rank, state.size, state.local_rank, state.local_size) == (5, 8, 1, 4)
    assert state.coordinates == Coordinates(pp=0, tp=1, rdp=1)
    assert state.device == torch.device("cpu")
    assert state.members(GroupKind.DP) == (0, 1, 4, 5)
    assert (state.rank_in(GroupKind.DP), state.size_of(GroupKind.DP)) == (3, 4)
    assert state.topology == Topology(8, 2, 2)
    assert state.job.members(GroupKind.TP) == (4, 5)


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_whole_model_is_on_a_rank_unless_there_is_a_pipeline(partitions: int) -> None:
    made = dataclasses.replace(job(), topology=Topology(8, partitions, 2))
    assert (made.has_pipeline, made.holds_whole_model) == (partitions > 1, partitions == 1)


def test_it_holds_the_groups(state: State) -> None:
    for kind in GroupKind:
        assert state.process_group(kind) is GROUPS[kind]
        is_world = kind is GroupKind.WORLD
        assert state.cpu_group(kind) is (MESSAGES if is_world else GROUPS[kind])
    assert state.message_group is MESSAGES


def test_parameters_are_attributes_those_that_nobody_knows_too(state: State) -> None:
    assert (state.cfg.microbatches, state.cfg.partitions, state.cfg.of_the_script) == (4, 1, "x")
    assert not hasattr(state.cfg, "no_such_parameter")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in vars(State).items()
        if isinstance(value, property) and name not in ("initialized", "optimizer")
    ],
)
def test_before_init_what_it_does_not_know_says_how_to_know_it(name: str) -> None:
    with pytest.raises(SMPNotInitialized, match=rf"smp.state.{name} .*Call smp.init\(config\)"):
        getattr(State(), name)


@pytest.mark.parametrize("name", ["members", "rank_in", "size_of", "process_group", "cpu_group"])
def test_before_init_there_are_no_groups(name: str) -> None:
    with pytest.raises(SMPNotInitialized, match=rf"smp.state.{name}\(\) "):
        getattr(State(), name)(GroupKind.DP)


def test_reset_forgets_all_and_calls_the_last_callback_first(state: State) -> None:
    state.model = "a model"
    state.made_by_somebody = 1  # type: ignore[attr-defined]
    called: list[Any] = []
    state.call_at_reset(lambda: called.append(("first", state.rank, state.model)))
    state.call_at_reset(lambda: called.append("last"))
    state.reset()
    assert called == ["last", ("first", 5, "a model")]
    assert not state.initialized
    assert state.model is None
    assert not hasattr(state, "made_by_somebody")
    state.reset()
    assert len(called) == 2


def test_reset_goes_on_after_a_callback_that_raises(state: State) -> None:
    called = []

    def fails() -> None:
        raise OSError("no more")

    state.call_at_reset(lambda: called.append(1))
    state.call_at_reset(fails)
    with pytest.raises(OSError, match="no more"):
        state.reset()
    assert called == [1]
    assert not state.initialized
