# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Regular expressions over lines, as launch specification, section 8.2 says."""

from __future__ import annotations

from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.metrics import MetricDefinition, Scanner, without_prefix

LOSS = {"Name": "loss", "Regex": r"loss: ([-+0-9.einfa]+)"}
ACCURACY = {"Name": "accuracy", "Regex": r"^acc=([0-9.]+)%?(?: \(best\))?"}


def scanner(*definitions: dict[str, str], rank: int | None = None) -> Scanner:
    return Scanner(MetricDefinition.all_of(definitions), rank)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 3 loss: 0.25", [("loss", 0.25)]),
        ("loss: 1e-3 and loss: 2", [("loss", 0.001)]),
        ("loss: -4", [("loss", -4.0)]),
        ("acc=97.5% (best)", [("accuracy", 97.5)]),
        ("acc=97.5 loss: 2", [("loss", 2.0), ("accuracy", 97.5)]),
        ("the acc=97.5", []),
        ("loss: nan", []),
        ("loss: inf", []),
        ("loss: -inf", []),
        ("loss: 1.2.3", []),
        ("loss:", []),
        ("", []),
    ],
)
def test_lines(line: str, expected: list[tuple[str, float]]) -> None:
    assert list(scanner(LOSS, ACCURACY).found(line)) == expected


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,mpirank:3,algo-1]<stdout>:",
        "[1,mpirank:12,algo-2]<stderr>:",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[rank 7] ",
    ],
)
def test_prefixes_of_launchers_are_not_the_ranks(prefix: str) -> None:
    assert without_prefix(prefix + "acc=5") == "acc=5"
    assert list(scanner(ACCURACY).found(prefix + "acc=5")) == [("accuracy", 5.0)]


def test_what_looks_like_a_prefix_stays_within_a_line() -> None:
    for line in ("a [rank 7] b", "[1] [2]", "[rank x] a"):
        assert without_prefix(line) == line


def test_one_rank_alone() -> None:
    only = scanner(LOSS, rank=0)
    assert list(only.found("loss: 1", rank=0)) == [("loss", 1.0)]
    assert list(only.found("loss: 1", rank=3)) == []
    assert list(only.found("loss: 1")) == [("loss", 1.0)], "nobody knows who it was"


def test_a_group_that_takes_no_part() -> None:
    either = scanner({"Name": "a", "Regex": r"a=(\d+)|b=(\d+)"})
    assert list(either.found("b=3")) == []


@pytest.mark.parametrize(
    ("definitions", "text"),
    [
        ([{"Name": "a"}], r"metric_definitions\[0\] is .*expected a dict with 'Name' and 'Regex'"),
        (["loss"], r"metric_definitions\[0\] is 'loss'"),
        ([LOSS, {"Name": "", "Regex": "(a)"}], r"metric_definitions\[1\] has Name ''"),
        ([{"Name": "a" * 256, "Regex": "(a)"}], "1 to 255 characters"),
        ([{"Name": "a", "Regex": "(" + "a" * 500}], "1 to 500 characters"),
        ([{"Name": "a", "Regex": 5}], "has Regex 5"),
        ([{"Name": "a", "Regex": "(a"}], "which is no regular expression"),
        ([{"Name": "a", "Regex": "a"}], "without a group"),
        ([LOSS] * 41, "has 41 entries; expected at most 40"),
    ],
)
def test_definitions_that_cannot_work(definitions: list[Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        MetricDefinition.all_of(definitions)


def test_as_many_as_are_allowed() -> None:
    assert len(MetricDefinition.all_of([LOSS] * 40)) == 40
