# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The summary: its figures by hand, and what it says when there is little to say."""

import pytest

from smdistributed.dataparallel.trace.merge import read_job
from smdistributed.dataparallel.trace.recorder import PythonEvent
from smdistributed.dataparallel.trace.summary import percentile, summarise, union_ns
from tests.unit.dataparallel.trace.synthetic import MS, Host, info, operation, simulate, trace


def lines_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(heading)) + 1
    table = []
    for line in lines[start:]:
        if not line.startswith("  "):
            break
        table.append([cell.strip() for cell in line.strip().split("  ") if cell.strip()])
    return table


def test_operations_of_one_sort_are_one_line() -> None:
    def member(rank: int) -> list[object]:
        return [
            operation(
                sequence=n,
                num_bytes=2**20,
                queued_ns=10 * n * MS,
                started_ns=10 * n * MS,
                arrived_ns=(10 * n + 1) * MS,
                finished_ns=(10 * n + duration) * MS,
            )
            for n, duration in enumerate([2, 4, 4, 6], start=1)
        ]

    text = summarise(read_job([trace(info(r), member(r)) for r in (0, 1)]))  # type: ignore[arg-type]
    head, row = lines_of(text, "Operations")
    assert head[-5:] == ["count", "median", "p95", "waiting", "bus GB/s"]
    assert row == [
        "all_reduce",
        "1.0 MiB",
        "float32",
        "staged",
        "8",
        "4 ms",
        "6 ms",
        "25 %",
        "0.26",
    ]


def test_operations_are_ordered_by_total_time_and_cut() -> None:
    operations = [operation(sequence=n, num_bytes=n, finished_ns=2 * MS + n) for n in range(1, 31)]
    text = summarise(read_job([trace(info(world_size=1), operations)]), max_rows=20)
    rows = lines_of(text, "Operations")
    assert [row[1] for row in rows[1:4]] == ["30 B", "29 B", "28 B"]
    assert len(rows) == 21
    assert "(10 more: --all)" in text
    assert "more" not in summarise(read_job([trace(info(world_size=1), operations)]), None)


def test_the_slow_rank_is_the_one_that_comes_last() -> None:
    hosts = [Host("a"), Host("a"), Host("b", 10**13, 1e-5)]
    text = summarise(read_job(simulate(hosts, num_collectives=100, slow_rank=2)))
    head, *rows = lines_of(text, "Who comes last")
    assert head == ["rank", "host", "comes last", "share", "by (median)", "others waited"]
    assert [row[2] for row in rows[:2]] == ["0", "0"]
    assert rows[2][:2] == ["2", "b"]
    # Now and then by less than the clocks of two hosts can tell.
    assert int(rows[2][2]) > 90


@pytest.mark.parametrize("seed", range(5))
def test_who_comes_last_by_less_than_the_clocks_know_is_not_blamed(seed: int) -> None:
    # A single collective tells less about the clocks than about who was late by them.
    traces = simulate([Host("a"), Host("b", 10**12)], num_collectives=1, seed=seed)
    rows = lines_of(summarise(read_job(traces)), "Who comes last")
    assert [row[2] for row in rows[1:]] == ["0", "0"]


def test_exposed_is_the_union_of_waits_and_of_what_the_caller_carried_out() -> None:
    spans = [
        PythonEvent("step", "step", "MainThread", 0, 20 * MS, {}),
        PythonEvent("step", "step", "MainThread", 20 * MS, 40 * MS, {}),
        PythonEvent("forward", "step", "MainThread", 20 * MS, 24 * MS, {}),  # a part of a step
        PythonEvent("wait", "wait", "MainThread", 2 * MS, 5 * MS, {}),
        PythonEvent("wait", "wait", "MainThread", 25 * MS, 26 * MS, {}),
    ]
    operations = [
        operation(sequence=1, started_ns=4 * MS, finished_ns=8 * MS, driver="caller"),
        operation(sequence=2, started_ns=9 * MS, finished_ns=19 * MS, driver="progress"),
    ]
    text = summarise(read_job([trace(info(world_size=1), operations, spans)]))
    head, row = lines_of(text, "Ranks")
    figures = dict(zip(head, row, strict=True))
    assert figures == {
        "rank": "0",
        "recorded": "100 ms",
        "in collectives": "14 ms",
        "waiting": "0 ns",
        "exposed": "7 ms",
        "share": "7 %",
        "steps": "2",
        "step": "20 ms",
        "exposed per step": "3.5 ms",
    }
    assert "Steps are not marked" not in text


def test_without_marked_steps_it_says_how_to_mark_them() -> None:
    text = summarise(read_job(simulate([Host("a"), Host("a")])))
    assert 'trace.span("step", track="step")' in text
    assert "exposed per step" not in text


def test_what_is_missing_is_said_first() -> None:
    traces = [
        trace(info(0, 4, dropped_operations=3), [operation(error="all_reduce #1: rank 3 left")]),
        trace(info(2, 4, dropped_spans=4)),
    ]
    text = summarise(read_job(traces))
    assert text.startswith("2 of 4 rank(s)")
    assert "no trace of rank(s) 1 3" in text
    assert "7 later events had no room" in text
    assert "failed: all_reduce #1: rank 3 left" in text


def test_an_empty_trace_is_no_riddle() -> None:
    assert "No operations were recorded" in summarise(read_job([trace(info(world_size=1))]))


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0),
        ([(0, 5)], 5),
        ([(0, 5), (5, 7)], 7),
        ([(3, 6), (0, 4)], 6),
        ([(0, 9), (2, 3)], 9),
        ([(0, 1), (4, 6)], 3),
    ],
)
def test_union(intervals: list[tuple[int, int]], expected: int) -> None:
    assert union_ns(intervals) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.05, 1), (0.5, 10), (0.95, 19), (1.0, 20)]
)
def test_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert percentile(list(range(20, 0, -1)), share) == expected
