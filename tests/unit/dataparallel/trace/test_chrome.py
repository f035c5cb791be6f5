# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Events of the Chrome format: rows, names, what nests, and nothing lost on the way back."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.dataparallel.trace.chrome import (
    assign_lanes,
    bus_bandwidth,
    document_events,
    format_bytes,
    read_operations,
)
from smdistributed.dataparallel.trace.recorder import PythonEvent
from tests.unit.dataparallel.trace.synthetic import MS, info, operation


def spans_of(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Spans and instants by the name of their row."""
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows.values()}
    for event in events:
        if event["ph"] in "Xi":
            found[rows[event["tid"]]].append(event)
    return found


def test_a_rank_is_a_process_with_its_name() -> None:
    events = document_events(info(rank=1), [], [operation()])
    names = {e["name"]: e["args"] for e in events if e["ph"] == "M"}
    assert names["process_name"] == {"name": "rank 1 (a, pid 101)"}
    assert names["process_sort_index"] == {"sort_index": 1}
    assert {e["pid"] for e in events} == {1}


def test_rows_come_in_the_order_of_a_step() -> None:
    python = [PythonEvent("x", track, "MainThread", 0, 1, {}) for track in ("wait", "own", "fill")]
    operations = [
        operation(queued_ns=0),
        operation(group="7", sequence=1),
        operation(kind="send", sequence=0),
    ]
    about = info(groups={"0": [0, 1], "7": [1]})
    rows = list(spans_of(document_events(about, python, operations)))
    assert rows == [
        "fill",
        "wait",
        "own",
        "collectives",
        "queued",
        "collectives, ranks 1",
        "sends and receives",
    ]


def test_a_group_of_unknown_ranks_is_called_by_its_name() -> None:
    rows = spans_of(document_events(info(groups={}), [], [operation(group="mesh")]))
    assert list(rows) == ["collectives, group mesh"]


def test_an_operation_tells_what_it_was_and_shows_its_waiting_inside() -> None:
    one = operation(num_bytes=25 * 2**20, queued_ns=MS // 2)
    rows = spans_of(document_events(info(), [], [one]))
    whole, waiting = rows["collectives"]
    assert whole["name"] == "all_reduce 25.0 MiB f32"
    assert (whole["ts"], whole["dur"]) == (1000.0, 2000.0)
    assert whole["args"] == {
        "group": "0",
        "sequence": 1,
        "kind": "all_reduce",
        "bytes": 25 * 2**20,
        "dtype": "float32",
        "reduce op": "SUM",
        "algorithm": "staged",
        "driver": "progress",
        "queued_us": 500.0,
        "waited_us": 1000.0,
        "bus GB/s": 13.107,
    }
    assert (waiting["name"], waiting["ts"], waiting["dur"]) == ("wait for other ranks", 1000, 1000)
    [queued] = rows["queued"]
    assert (queued["ts"], queued["dur"]) == (500.0, 500.0)


def test_an_error_is_a_mark_and_a_detail() -> None:
    text = "all_reduce #1: rank 1 left"
    rows = spans_of(document_events(info(), [], [operation(error=text)]))
    whole, _, mark = rows["collectives"]
    assert whole["args"]["error"] == text
    assert (mark["ph"], mark["name"], mark["args"]) == ("i", "all_reduce failed", {"error": text})


def test_waits_too_short_to_see_are_details_only() -> None:
    one = operation(arrived_ns=MS + 999, queued_ns=MS - 999)
    rows = spans_of(document_events(info(), [], [one]))
    assert [len(row) for row in rows.values()] == [1]
    assert rows["collectives"][0]["args"]["waited_us"] == 0.999


def test_bytes_in_flight_rise_when_queued_and_fall_when_finished() -> None:
    operations = [
        operation(num_bytes=10, queued_ns=1 * MS, finished_ns=3 * MS),
        operation(num_bytes=5, queued_ns=2 * MS, finished_ns=3 * MS),
    ]
    events = document_events(info(), [], operations)
    levels = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert levels == [(1000.0, 10), (2000.0, 15), (3000.0, 0)]


def test_what_is_written_is_read_back_to_the_nanosecond() -> None:
    # Readings of a host that has been up for months, where a float would lose nanoseconds.
    base_ns = 2**53 + 12345
    operations = [
        operation(
            queued_ns=base_ns + 1,
            started_ns=base_ns + 77_777,
            arrived_ns=base_ns + 88_001,
            finished_ns=base_ns + 99_999_999,
        ),
        operation(
            sequence=2,
            kind="barrier",
            num_bytes=0,
            queued_ns=base_ns + 3,
            started_ns=base_ns + 3,
            arrived_ns=0,
            finished_ns=base_ns + 3,
            error="gone",
        ),
        operation(
            sequence=0,
            kind="recv",
            algorithm="message",
            queued_ns=base_ns,
            started_ns=base_ns + 5,
            arrived_ns=0,
            finished_ns=base_ns + 10_000_000_007,
        ),
    ]
    about = info(origin_ns=base_ns)
    events = json.loads(json.dumps(document_events(about, [], operations)))
    assert sorted(read_operations(events, base_ns)) == sorted(operations)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_in_a_lane_spans_nest_or_follow(pairs: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in pairs]
    lanes = assign_lanes(spans)
    for (a, lane_a), (b, lane_b) in itertools.combinations(zip(spans, lanes, strict=True), 2):
        if lane_a != lane_b:
            continue
        (_, end_a), (start_b, end_b) = sorted((a, b), key=lambda s: (s[0], -s[1]))
        assert end_a <= start_b or end_b <= end_a


def test_spans_that_overlap_get_lanes_with_numbers() -> None:
    operations = [
        operation(kind="send", started_ns=1 * MS, arrived_ns=0, finished_ns=3 * MS),
        operation(kind="recv", started_ns=2 * MS, arrived_ns=0, finished_ns=4 * MS),
        operation(kind="send", started_ns=3 * MS, arrived_ns=0, finished_ns=5 * MS),
    ]
    rows = spans_of(document_events(info(), [], operations))
    assert {name: len(row) for name, row in rows.items() if "queued" not in name} == {
        "sends and receives": 2,
        "sends and receives, 2": 1,
    }


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1023, "1023 B"),
        (4096, "4 KiB"),
        (1536, "1.5 KiB"),
        (25 * 2**20, "25.0 MiB"),
        (3 * 2**30, "3.0 GiB"),
    ],
)
def test_sizes_read_as_people_write_them(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("kind", "group_size", "gigabytes_per_s"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 4, None),
        ("all_reduce", 1, None),
        ("all_reduce", None, None),
    ],
)
def test_bus_bandwidth_counts_what_must_cross(
    kind: str, group_size: int | None, gigabytes_per_s: float | None
) -> None:
    one = operation(kind=kind, num_bytes=2_000_000)  # in 2 ms
    assert bus_bandwidth(one, group_size) == gigabytes_per_s
