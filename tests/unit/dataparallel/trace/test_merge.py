# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The merged trace: every rank's events, on one clock, and who came last."""

from typing import Any

import pytest

from smdistributed.dataparallel.trace.merge import (
    Job,
    describe_clocks,
    merge_events,
    merged_about,
    read_job,
)
from smdistributed.dataparallel.trace.recorder import PythonEvent
from tests.unit.dataparallel.trace.synthetic import MS, Host, info, operation, simulate, trace


def two_ranks() -> Job:
    """Rank 1, on the same host, comes 4 ms after rank 0 and both end at 10 ms."""
    host = Host("a", 7_000_000_123)
    early, late, end = (host.read(ms * MS) for ms in (2, 6, 10))
    one = operation(queued_ns=early, started_ns=early, arrived_ns=late, finished_ns=end)
    other = operation(queued_ns=late, started_ns=late, arrived_ns=late, finished_ns=end)
    span = PythonEvent("bucket", "fill", "MainThread", host.read(MS), host.read(2 * MS), {})
    origins = [host.read(MS), host.read(5 * MS)]
    return read_job(
        [
            trace(info(0, host=host, origin_ns=origins[0]), [one], [span]),
            trace(info(1, host=host, origin_ns=origins[1]), [other]),
        ]
    )


def operations(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == "operation"]


def test_times_are_those_of_one_clock_from_the_first_recording_on() -> None:
    events = merge_events(two_ranks())
    assert [(e["pid"], e["ts"], e["dur"]) for e in operations(events)] == [
        (0, 2000.0, 8000.0),
        (1, 6000.0, 4000.0),
    ]
    [fill] = [event for event in events if event.get("cat") == "fill"]
    assert (fill["ts"], fill["dur"]) == (1000.0, 1000.0)


def test_collectives_say_who_came_last_and_how_late() -> None:
    first, second = operations(merge_events(two_ranks()))
    assert (first["args"]["late_us"], first["args"]["came last"]) == (0.0, "rank 1")
    assert (second["args"]["late_us"], second["args"]["came last"]) == (4000.0, "rank 1")


def test_nothing_is_lost_and_the_sources_stay_as_they_were() -> None:
    job = two_ranks()
    before = [list(trace.events) for trace in job.traces]
    events = merge_events(job)
    assert len(events) == sum(len(trace.events) for trace in job.traces)
    assert [list(trace.events) for trace in job.traces] == before


def test_the_file_says_what_it_was_made_of() -> None:
    traces = simulate([Host("a"), Host("a"), Host("b", 99)])[:2]
    about = merged_about(read_job(traces))
    assert about["files"] == ["trace.0.json", "trace.1.json"]
    assert about["missing_ranks"] == [2]
    assert about["matched_collectives"] == 20
    assert about["clocks"] == [
        {
            "host": "a",
            "ranks": [0, 1],
            "method": "reference",
            "collectives": 0,
            "error_us": 0.0,
            "drift_ppm": [],
        }
    ]


def test_alignment_and_its_error_are_told() -> None:
    job = read_job(simulate([Host("a"), Host("b", 10**12, 3e-5)], num_collectives=300))
    [line] = describe_clocks(job)
    error_ns = job.clocks["b"].error_ns
    assert error_ns is not None
    assert line == (
        f"host b (ranks 1): aligned by 300 collectives, within {error_ns / 1000:.1f} us"
    )
    about = merged_about(job)["clocks"][1]
    assert about["error_us"] == error_ns / 1000
    assert about["drift_ppm"] == pytest.approx([-30], abs=2)
    labels = [e["args"]["labels"] for e in merge_events(job) if e["name"] == "process_labels"]
    assert labels == ["reference clock", f"clock within {error_ns / 1000:.1f} us"]


def test_an_unknown_error_is_told_as_unknown() -> None:
    job = read_job(simulate([Host("a"), Host("b", 10**12)], groups=[[0], [1]]))
    [line] = describe_clocks(job)
    assert "no collective in common" in line
    assert "the error is unknown" in line


def test_spans_that_nest_still_do_on_another_clock() -> None:
    job = read_job(simulate([Host("a"), Host("b", 10**15 + 7, 3e-4)], num_collectives=100))
    events = [event for event in merge_events(job) if event["pid"] == 1]
    outer = operations(events)
    inner = [event for event in events if event.get("cat") == "peers"]
    assert len(outer) == 100
    assert inner
    starts = {event["ts"]: event for event in outer}
    for event in inner:
        assert event["dur"] <= starts[event["ts"]]["dur"]
