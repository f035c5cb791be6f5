# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Values of metrics, read and averaged as launch specification, section 8.2 says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smdistributed.launch.points import Point, averages, points_of


def write(job: Path, host: str, *lines: str) -> None:
    folder = job / "hosts" / host
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(lines))


def line(time: float, name: str, value: float) -> str:
    return json.dumps({"time": time, "name": name, "value": value}) + "\n"


def test_values_of_all_hosts_by_time(tmp_path: Path) -> None:
    write(tmp_path, "algo-1", line(5.0, "loss", 1.0), line(7.0, "loss", 3.0))
    write(tmp_path, "algo-2", line(5.0, "loss", 2.0), line(6.0, "acc", 4.0))
    assert points_of(tmp_path) == [
        Point(5.0, "algo-1", "loss", 1.0),
        Point(5.0, "algo-2", "loss", 2.0),
        Point(6.0, "algo-2", "acc", 4.0),
        Point(7.0, "algo-1", "loss", 3.0),
    ]


@pytest.mark.parametrize("broken", ['{"time": 5, "na', "\n", "5\n", '{"time": "x"}\n', "null\n"])
def test_a_line_that_is_broken_is_left_out(tmp_path: Path, broken: str) -> None:
    write(tmp_path, "algo-1", line(5.0, "loss", 1.0), broken)
    assert [point.value for point in points_of(tmp_path)] == [1.0]


def test_a_job_without_values(tmp_path: Path) -> None:
    assert points_of(tmp_path) == []
    assert averages([], 60) == []


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        (60, [(0.0, 1.5), (60.0, 4.0), (180.0, 8.0)]),
        (3600, [(0.0, 3.75)]),
        (1, [(0.0, 1.0), (58.0, 2.0), (60.0, 4.0), (180.0, 8.0)]),
    ],
)
def test_the_mean_of_each_period_that_has_values(
    period: int, expected: list[tuple[float, float]]
) -> None:
    # 3601 lies a second after the begin of a minute and of an hour.
    times = {3601.0: 1.0, 3659.0: 2.0, 3661.0: 4.0, 3781.0: 8.0}
    points = [Point(time, "algo-1", "loss", value) for time, value in times.items()]
    assert averages(points, period) == expected
    assert averages(points[::-1], period) == expected
