# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Partitions by hand, and how a decision is shown (specification, sections 3.7, 3.8 and 4.6)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import nn

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.modules import assignment
from smdistributed.modelparallel.torch.modules.assignment import Decision, assign_by_hand


@pytest.fixture(autouse=True)
def three_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process were one of three ranks."""

    class Job:
        config = Config.parse(
            {"partitions": 3, "auto_partition": False, "default_partition": 1}, {}
        )

    class State:
        model: Any = None

        def require(self, what: str) -> Any:
            return Job()

    monkeypatch.setattr(assignment, "state", State())


def test_children_go_with_the_nearest_that_was_assigned() -> None:
    with smp.partition(2):
        inner = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1)))
    outer = nn.ModuleDict({"a": inner, "b": nn.Linear(1, 1)})
    assert assign_by_hand(outer, 1).partition_of == {
        "main": 0,
        "main/a": 2,
        "main/a/0": 2,
        "main/a/1": 2,
        "main/a/1/0": 2,
        "main/b": 1,
    }


def test_reasons_name_who_was_assigned() -> None:
    with smp.partition(2):
        inner = nn.Sequential(nn.Linear(1, 1))
    outer = nn.ModuleDict({"a": inner, "b": nn.Linear(1, 1), "c": nn.Sequential(nn.Linear(1, 1))})
    smp.set_partition(outer["c"], 0)
    assert assign_by_hand(outer, 1).reasons == {
        "main": "the root runs on partition 0",
        "main/a": "assigned by hand",
        "main/a/0": "assigned by hand",
        "main/b": "default_partition",
        "main/c": "assigned by hand",
        "main/c/0": "as main/c, which was assigned by hand",
    }


def test_the_innermost_block_decides_and_ends() -> None:
    before = nn.Module.__init__  # not always torch's own: its compiler wraps it for good
    with smp.partition(0):
        first = nn.Linear(1, 1)
        with smp.partition(2):
            second = nn.Linear(1, 1)
        third = nn.Linear(1, 1)
    fourth = nn.Linear(1, 1)
    decided = assign_by_hand(nn.ModuleList([first, second, third, fourth]), 1).partition_of
    assert [decided[f"main/{number}"] for number in range(4)] == [0, 2, 0, 1]
    assert nn.Module.__init__ is before


def test_copies_stay_where_their_original_is() -> None:
    with smp.partition(2):
        layer = nn.Linear(1, 1)
    model = nn.ModuleList([copy.deepcopy(layer), nn.Linear(1, 1)])
    assert assign_by_hand(model, 0).partition_of["main/0"] == 2


def test_a_later_call_wins_over_the_block() -> None:
    with smp.partition(2):
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    smp.set_partition(model[0], 1)
    smp.set_partition(model[0], 0)
    decided = assign_by_hand(nn.ModuleList([model]), 1).partition_of
    assert (decided["main/0"], decided["main/0/0"], decided["main/0/1"]) == (2, 0, 2)


@pytest.mark.parametrize("index", [3, -1, "1", True, 1.0])
def test_partitions_that_are_not_there(index: Any) -> None:
    with pytest.raises(ValueError, match="expected an integer from 0 to 2"), smp.partition(index):
        pass
    with pytest.raises(ValueError, match="expected an integer from 0 to 2"):
        smp.set_partition(nn.Linear(1, 1), index)


def test_modules_that_share_must_be_together() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    smp.set_partition(model[0], 0)
    smp.set_partition(model[1], 2)
    with pytest.raises(ConfigError, match=r"main/0 \(partition 0\) and main/1 \(partition 2\)"):
        assign_by_hand(model, 1)


def test_a_module_in_two_places_has_one_partition() -> None:
    shared = nn.Linear(1, 1)
    smp.set_partition(shared, 2)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    assert assign_by_hand(model, 0).partition_of["main/a/0"] == 2


def test_the_log_shows_what_is_not_all_in_one_place() -> None:
    decision = Decision(
        {
            "main": 0,
            "main/a": 0,
            "main/a/x": 0,
            "main/a/y": 0,
            "main/b": 1,
            "main/b/x": 1,
            "main/b/y": 0,
        }
    )
    assert decision.lines() == ["main: 0", "main/a: 0", "main/b: 1", "main/b/x: 1", "main/b/y: 0"]
