# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table that says where modules are, and why."""

from __future__ import annotations

import torch
from torch import nn

from smdistributed.modelparallel.decide.partition import Share
from smdistributed.modelparallel.torch.modules.assignment import Decision
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.partitioning.observation import decide, observe
from smdistributed.modelparallel.torch.partitioning.partition_report import partition_report
from smdistributed.modelparallel.torch.partitioning.partitioner import in_one_partition


def _model() -> nn.Module:
    return nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(1000, 10), nn.Linear(10, 2, bias=False)),
            "decoder": nn.Linear(2, 4),
        }
    )


PLACES = {
    "main": 0,
    "main/encoder": 0,
    "main/encoder/0": 0,
    "main/encoder/1": 0,
    "main/decoder": 1,
}


def _report(decision: Decision, ranks: list[list[int]]) -> list[str]:
    return partition_report(Placement(_model(), decision, 0), ranks).splitlines()


def test_rows_are_modules_with_what_is_below_them() -> None:
    decision = Decision(
        PLACES,
        {
            "main": "the root runs on partition 0",
            "main/encoder": "of itself",
            "main/encoder/0": "hidden",
            "main/decoder": "last",
        },
        {
            "main": Share(0.0, 0.25),
            "main/encoder": Share(0.0, 0.0),
            "main/encoder/0": Share(0.5, 0.25),
            "main/encoder/1": Share(0.125, 0.0),
            "main/decoder": Share(0.375, 0.5),
        },
        (0.625, 0.375),
    )
    assert _report(decision, [[0, 2], [1, 3]]) == [
        "partition 0 on ranks 0, 2: load 62.5%, 10,030 parameters",
        "partition 1 on ranks 1, 3: load 37.5%, 12 parameters",
        "",
        "partition  parameters  memory   time  module        why",
        "        0           0    0.0%  25.0%  main          the root runs on partition 0",
        "        0      10,030   62.5%  25.0%  main/encoder  of itself",
        "        1          12   37.5%  50.0%  main/decoder  last",
    ]


def test_without_costs_there_are_none() -> None:
    decision = Decision(PLACES, dict.fromkeys(PLACES, "as f says"))
    assert _report(decision, [[0], [1]]) == [
        "partition 0 on rank 0: 10,030 parameters",
        "partition 1 on rank 1: 12 parameters",
        "",
        "partition  parameters  module        why",
        "        0           0  main          as f says",
        "        0      10,030  main/encoder  as f says",
        "        1          12  main/decoder  as f says",
    ]


def test_one_partition_is_one_row() -> None:
    assert _report(in_one_partition(_model()), [list(range(7))]) == [
        "partition 0 on ranks 0, 1, 2, 3 and 3 more: 10,042 parameters",
        "",
        "partition  parameters  module  why",
        "        0      10,042  main    there is one partition",
    ]


def test_shared_parameters_count_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    places = {"main": 0, "main/a": 1, "main/b": 1}
    lines = partition_report(Placement(model, Decision(places), 0), [[0], [1]]).splitlines()
    assert lines[:2] == [
        "partition 0 on rank 0: 0 parameters",
        "partition 1 on rank 1: 4 parameters",
    ]
    assert [line.split()[:3] for line in lines[-3:]] == [
        ["0", "0", "main"],
        ["1", "4", "main/a"],
        ["1", "0", "main/b"],
    ]


def test_rows_of_a_decision_by_cost_add_up() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    found = observe(model, (torch.ones(2, 8),), {}, torch.device("cpu"), is_measured=False)
    # By memory alone: so small a model would go nowhere else, messages cost more than they save.
    chosen = decide(found, 2, 1.0, 1)
    decision = Decision(chosen.partition_of, chosen.reasons, chosen.shares, chosen.loads)
    lines = partition_report(Placement(model, decision, 0), [[0], [1]]).splitlines()
    rows = [line.split(maxsplit=5) for line in lines[4:]]
    assert [row[4] for row in rows] == ["main", "main/0", "main/1", "main/2", "main/3"]
    assert sum(int(row[1]) for row in rows) == 4 * 72
    for column in (2, 3):
        assert abs(sum(float(row[column].rstrip("%")) for row in rows) - 100) < 0.3
    assert all("the largest load would be" in row[5] for row in rows[1:])
