# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the page of tf_pipeline says of a result file, and which of its targets are met."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

FOLDER = "tf_pipeline"  # whose modules `load` imports

Load = Callable[[str], ModuleType]


def _ratio(middle: float) -> dict[str, float]:
    return {"median": middle, "p10": middle - 0.1, "p90": middle + 0.1}


def _spread(middle: float) -> dict[str, float]:
    return {"median": middle, "least": middle / 2, "greatest": middle * 2}


def _content(found: dict[str, float]) -> dict[str, Any]:
    """As of a run that has measured all, with these figures for what is aimed at."""
    times = {"smp": 160.0, "one thread": 240.0, "threads": 180.0}
    fit = {"ideal": 150.0, "alone": 140.0, "pieces": 250.0}
    bounds = {"stages": 1.79, "together": 0.93, "batch": 0.96, "of_ideal": 1.6}

    def steps(shape: str, ranks: int, microbatches: int) -> dict[str, Any]:
        speed = {"one thread": _ratio(found["speed"]), "threads": _ratio(1.1)}
        is_fit = ranks == 2
        return {
            "shape": shape,
            "ranks": ranks,
            "microbatches": microbatches,
            "first_s": 2.0,
            "median_ms": times | (fit if is_fit else {}),
            "speed_against": speed | ({"ideal": _ratio(found["ideal"])} if is_fit else {}),
            "bounds": {name: _ratio(each) for name, each in bounds.items()} if is_fit else {},
        }

    job = {"ranks": 2, "microbatches": 8}
    overlap = {"part": "overlap", **job, "ideal_ms": 450.0, "step_ms": _spread(470.0)}
    first = {"part": "first-call", "ranks": 2, "microbatches": 32, "bodies": 2}
    later = {"later_ms": _spread(40.0)}
    results: list[dict[str, Any]] = [
        {**overlap, "asked_ms": 10.0, "stage_ms": 11.0, "of_ideal": _spread(0.5)},
        {**overlap, "asked_ms": 50.0, "stage_ms": 52.0, "of_ideal": _spread(found["stages"])},
        {"part": "empty", **job, "step_ms": _spread(1.6), "in_graph_ms": _spread(1.9)},
        {**first, "layers": 200, "first_s": found["first 200"], **later},
        {**first, "layers": 1000, "first_s": found["first 1000"], **later},
        {"part": "segment", "segment_ms": _spread(0.04)},
        {"part": "message", "bytes": 64, "hop_ms": _spread(0.1)},
        {"part": "message", "bytes": 1 << 18, "hop_ms": _spread(0.24)},
    ]
    hybrid = {
        "microbatches": 8,
        "median_ms": dict.fromkeys(("replicas", "pipeline", "without", "exchange"), 5.0),
        "time_against_without": _ratio(1.0),
    }
    memory = {
        "active": 4,
        "held_bytes": [126_000_000, 33_000_000],
        "held_microbatches": [4, 3],
        "grown_bytes": [190_000_000, 80_000_000],
        "peak_bytes": [900_000_000, 800_000_000],
    }
    machine = {
        "cpu_model": "a processor",
        "cpu_family_model_stepping": "1/2/3",
        "vector_extensions": [],
        "hypervisor": False,
        "memory_gib": 8.0,
        "cpus": 2,
        "kernel": "6.1",
    }
    return {
        "environment": machine,
        "date": "2026-11-28",
        "command": "python benchmarks/tf_pipeline/run.py",
        "rounds": 11,
        "results": results,
        "steps": [
            *(steps("gpt-4", 2, each) for each in (2, 8)),
            *(steps(each, 2, 8) for each in ("gpt-8", "tiny")),
            steps("gpt-4", 4, 8),
        ],
        "hybrid": [
            {**hybrid, "shape": "gpt-4", "time_against_pipeline": _ratio(found["replicas"])},
            {**hybrid, "shape": "tiny", "time_against_pipeline": _ratio(2.4)},
        ],
        "memory": [memory],
    }


ENOUGH = {
    "speed": 1.55,
    "ideal": 0.92,
    "stages": 0.95,
    "first 200": 10.0,
    "first 1000": 30.0,
    "replicas": 1.1,
}


@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        ({}, []),
        ({"speed": 1.549}, [0]),
        ({"ideal": 0.919}, [1, 2]),
        ({"stages": 0.949}, [3]),
        ({"first 200": 10.1}, [4]),
        ({"first 1000": 30.1}, [5]),
        ({"replicas": 1.101}, [6]),
    ],
)
def test_targets(worse: dict[str, float], missed: list[int], load: Load) -> None:
    """Of 2 ranks and 8 microbatches, and not of the tiny model."""
    content = _content(ENOUGH | worse)
    found = [is_met for *_, is_met in load("report").targets(content)]
    assert found == [number not in missed for number in range(7)]


def test_the_page_has_a_row_for_each_record(load: Load) -> None:
    page = load("report").page(_content(ENOUGH))
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    starts = [row[:3] for row in rows]
    gpt = "GPT, 4 blocks of width 256"
    assert starts.count([gpt, "2", "8"]) == 2  # steps, and why the ideal is not faster
    assert starts.count([gpt, "4", "8"]) == 1  # where there is no ideal
    assert ["11.0", "450", "470"] in starts
    assert ["52.0", "450", "470"] in starts
    costs = [row[0] for row in rows if "segment and its" in row[0]]
    assert costs == [
        "a backward segment and its gradient",
        "a segment and its message of 64 B",
        "a segment and its message of 256 KiB",
    ]
    assert [row[2] for row in rows if row[:2] == ["1000", "32"]] == ["30.0"]
    assert ["4", "126", "33", "4", "3", "190", "80", "900", "800"] in rows


def test_a_page_of_some_parts(load: Load) -> None:
    content = _content(ENOUGH)
    content |= {"results": content["results"][-1:], "hybrid": [], "memory": []}
    page = load("report").page(content)
    assert "a segment and its message of 256 KiB" in page
    assert "a backward segment" not in page
    for title in ("Overlap", "The first call", "Replicas", "Memory"):
        assert f"## {title}" not in page


def test_three_factors_lead_from_one_process_to_the_ideal(load: Load) -> None:
    """A machine slower by ten in the second round touches all alike."""
    turns = {
        "one thread": [0.24, 2.4],
        "pieces": [0.25, 2.5],
        "alone": [0.125, 1.25],
        "ideal": [0.16, 1.6],
    }
    found = {name: each["median"] for name, each in load("steps").bounds_of(turns).items()}
    assert found == {"stages": 2.0, "together": 0.7812, "batch": 0.96, "of_ideal": 1.5}
    assert found["stages"] * found["together"] * found["batch"] == pytest.approx(1.5, rel=1e-3)
