# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks of hosts: known offsets and rates come out within the error that is stated."""

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smdistributed._common.errors import ConfigurationError
from smdistributed.dataparallel.trace.clock import (
    MAX_DRIFT,
    ClockMap,
    Line,
    Point,
    _lower_hull,
    align_clocks,
    fit_line,
)
from smdistributed.dataparallel.trace.matching import match_collectives
from smdistributed.dataparallel.trace.model import RankTrace
from tests.unit.dataparallel.trace.synthetic import MS, Host, operation, simulate, trace
from tests.unit.dataparallel.trace.synthetic import info as about

SECOND = 1_000_000_000


def align(traces: Sequence[RankTrace]) -> dict[str, ClockMap]:
    return align_clocks(traces, match_collectives(traces))


def assert_right_within_stated_error(
    clocks: dict[str, ClockMap], hosts: Sequence[Host], end_ns: int
) -> None:
    reference = hosts[0]
    for host in hosts:
        clock = clocks[host.name]
        assert clock.error_ns is not None
        for true_ns in range(0, end_ns, max(1, end_ns // 17)):
            wrong_ns = clock(host.read(true_ns)) - reference.read(true_ns)
            # Readings are whole nanoseconds, each step of a map rounds once.
            assert abs(wrong_ns) <= clock.error_ns + 2 + len(clock.steps), (host, true_ns)


def test_ranks_of_one_host_need_no_alignment() -> None:
    clocks = align(simulate([Host("a", 5 * SECOND), Host("a", 5 * SECOND)]))
    assert list(clocks) == ["a"]
    assert clocks["a"].method == "reference"
    assert clocks["a"](123456789) == 123456789
    assert clocks["a"].error_ns == 0


@pytest.mark.parametrize("offset_ns", [0, 1, -7 * SECOND, 10**16])
@pytest.mark.parametrize("drift", [0.0, 2e-5, -2e-5, 4e-4])
@pytest.mark.parametrize("seed", [1, 2])
def test_known_offsets_and_rates_are_found(offset_ns: int, drift: float, seed: int) -> None:
    hosts = [Host("a", 3 * SECOND), Host("b", offset_ns, drift)]
    traces = simulate(hosts, num_collectives=200, seed=seed)
    clocks = align(traces)
    assert clocks["b"].method == "collectives"
    assert clocks["b"].collectives == 200
    end_ns = traces[0].info.stopped_ns - hosts[0].offset_ns
    assert_right_within_stated_error(clocks, hosts, end_ns)
    # The error is worth stating: far less than a step, and not less than can be known.
    assert clocks["b"].error_ns is not None
    assert 10_000 < clocks["b"].error_ns < 2 * MS


@settings(max_examples=60, deadline=None)
@given(
    offsets=st.lists(st.integers(-(10**15), 10**15), min_size=2, max_size=4),
    drifts=st.lists(st.floats(-MAX_DRIFT / 2, MAX_DRIFT / 2), min_size=4, max_size=4),
    ranks_per_host=st.integers(1, 2),
    num_collectives=st.integers(1, 40),
    seed=st.integers(0, 10**6),
)
def test_no_effect_comes_before_its_cause(
    offsets: list[int],
    drifts: list[float],
    ranks_per_host: int,
    num_collectives: int,
    seed: int,
) -> None:
    """On the common clock nobody ends a collective before all have started it.

    And the stated error holds, whatever offsets, rates and delays were.
    """
    hosts = [
        Host(f"h{n}", offset, drift)
        for n, (offset, drift) in enumerate(zip(offsets, drifts, strict=False))
    ]
    hosts[0] = dataclasses.replace(hosts[0], drift=0.0)  # the reference keeps true time
    of_rank = [host for host in hosts for _ in range(ranks_per_host)]
    traces = simulate(of_rank, num_collectives=num_collectives, seed=seed)
    clocks = align(traces)
    end_ns = traces[0].info.stopped_ns - hosts[0].offset_ns
    assert_right_within_stated_error(clocks, hosts, end_ns)
    for ours, theirs in itertools.permutations(traces, 2):
        clock, other = clocks[ours.info.clock], clocks[theirs.info.clock]
        assert clock.error_ns is not None
        assert other.error_ns is not None
        for a, b in zip(ours.operations, theirs.operations, strict=True):
            slack_ns = clock(a.finished_ns) - other(b.started_ns)
            assert slack_ns >= -(clock.error_ns + other.error_ns) - 2
            if "h0" in (ours.info.clock, theirs.info.clock):
                assert slack_ns >= -2  # seen from the reference, not even within the error


def test_a_host_is_reached_through_another() -> None:
    hosts = [Host("a"), Host("b", 5 * SECOND, 1e-5), Host("c", -9 * SECOND, -1e-5)]
    traces = simulate(hosts, num_collectives=50, groups=[[0, 1], [1, 2]])
    clocks = align(traces)
    assert len(clocks["c"].steps) == 2
    assert_right_within_stated_error(clocks, hosts, traces[0].info.stopped_ns)
    assert clocks["b"].error_ns is not None
    assert clocks["c"].error_ns is not None
    assert clocks["c"].error_ns > clocks["b"].error_ns


def test_a_host_without_a_common_collective_is_placed_by_utc() -> None:
    hosts = [Host("a", 1 * SECOND), Host("b", 5 * SECOND)]
    clocks = align(simulate(hosts, groups=[[0], [1]]))
    assert clocks["b"].method == "wall clock"
    assert clocks["b"].error_ns is None
    assert clocks["b"](hosts[1].read(42)) == hosts[0].read(42)


def test_one_collective_is_enough_for_an_error_of_its_length() -> None:
    hosts = [Host("a"), Host("b", 77)]
    traces = simulate(hosts, num_collectives=1, seed=3)
    clocks = align(traces)
    assert_right_within_stated_error(clocks, hosts, traces[0].info.stopped_ns)


def test_different_runs_on_one_host_are_refused() -> None:
    one = simulate([Host("a"), Host("a")], seed=1)[0]
    other = simulate([Host("a", 3600 * SECOND)] * 2, seed=2)[1]
    with pytest.raises(ConfigurationError, match=r"ms before another started it.*files of one run"):
        align([one, other])


def test_different_runs_on_two_hosts_are_refused() -> None:
    one = simulate([Host("a"), Host("b", 99)], seed=1, step_ns=5 * MS)[0]
    other = simulate([Host("a"), Host("b", 99)], seed=2, step_ns=50 * MS)[1]
    with pytest.raises(ConfigurationError, match=r"20 common collectives.*Give files of one run"):
        align([one, other])


def test_a_rate_that_was_not_steady_is_added_to_the_error() -> None:
    # Both bounds of the second point are 100 us above what the others allow.
    lower = [Point(0, -10_000), Point(5e8, 90_000), Point(1e9, -10_000)]
    upper = [Point(0, 10_000), Point(5e8, 110_000), Point(1e9, 10_000)]
    line = fit_line(lower, upper, (0, 1e9))
    assert line.excess == pytest.approx(40_000)
    assert line.error >= 40_000
    assert line(0) == pytest.approx(50_000)


@pytest.mark.parametrize(
    ("lower", "upper", "offset", "drift", "error"),
    [
        # One collective: the middle, no drift; the error knows that there may have been one.
        ([(0, -4)], [(0, 6)], 1, 0.0, 5),
        # Two that fit no drift but 0.
        ([(0, 0), (10_000, 0)], [(0, 0), (10_000, 0)], 0, 0.0, 0),
        # A drift of 100 parts per million, known exactly.
        ([(0, 0), (10_000, 1)], [(0, 0), (10_000, 1)], 0.5, 1e-4, 0),
        # Bounds of one side only at a time: the tightest of each counts.
        ([(0, -5), (0, -2)], [(0, 3), (0, 2)], 0, 0.0, 2),
    ],
)
def test_lines_by_hand(
    lower: list[tuple[float, float]],
    upper: list[tuple[float, float]],
    offset: float,
    drift: float,
    error: float,
) -> None:
    span = (0.0, 10_000.0) if len({at for at, _ in lower}) > 1 else (0.0, 0.0)
    line = fit_line([Point(*p) for p in lower], [Point(*p) for p in upper], span)
    assert (line.offset, line.drift, line.error) == pytest.approx((offset, drift, error))


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(-(10**4), 0), st.integers(0, 10**4)),
        min_size=1,
        max_size=20,
    ),
    st.floats(-MAX_DRIFT, MAX_DRIFT),
)
def test_no_drift_leaves_a_wider_gap_than_the_one_chosen(
    bounds: list[tuple[int, int, int]], other: float
) -> None:
    lower = [Point(at, low) for at, low, _ in bounds]
    upper = [Point(at, high) for at, _, high in bounds]
    line = fit_line(lower, upper, (0, 10**6))

    def gap(drift: float) -> float:
        return min(p.offset - drift * p.at for p in upper) - max(
            p.offset - drift * p.at for p in lower
        )

    def margin(line: Line) -> float:
        above = min(p.offset - line(p.at) for p in upper)
        return min(above, min(line(p.at) - p.offset for p in lower))

    assert gap(other) <= gap(line.drift) + 1e-6
    assert margin(line) == pytest.approx(gap(line.drift) / 2, abs=1e-6)


def test_many_bounds_that_all_matter_are_fitted() -> None:
    """Every bound is a corner of its convex hull.

    The number is such that a fit of quadratic cost would run into the deadline of a test.
    """
    half, room, curvature, offset, drift = 25_000, 1_000.0, 4e-13, 77.0, 2e-5
    moments = [1e9 * n / half for n in range(-half, half + 1)]
    lower, upper = (
        [Point(at, offset + drift * at + side * (room + curvature * at**2)) for at in moments]
        for side in (-1, 1)
    )
    assert len(_lower_hull(upper)) == len(upper)
    line = fit_line(lower, upper, (-1e9, 1e9))
    assert line.excess == 0
    assert line.offset == pytest.approx(offset)
    # As wide is the gap of all lines that touch the curves at their middle corners.
    assert line.drift == pytest.approx(drift, abs=2 * curvature * 1e9 / half)
    # The steepest line that fits touches both curves and crosses the one found in the middle.
    assert line.error == pytest.approx(2 * (room * curvature) ** 0.5 * 1e9, rel=1e-3)


def test_only_collectives_that_wait_for_all_tie_clocks() -> None:
    def member(rank: int, **changes: object) -> RankTrace:
        return trace(about(rank, host=Host(f"h{rank}")), [operation(**changes)])

    for changes in (
        {"kind": "broadcast"},
        {"kind": "all_to_all"},
        {"num_bytes": 0},
        {"error": "gone"},
        {"algorithm": "alone"},
        {"kind": "send", "sequence": 0},
    ):
        assert match_collectives([member(0, **changes), member(1, **changes)]) == []
    barrier = {"kind": "barrier", "num_bytes": 0}
    [found] = match_collectives([member(0, **barrier), member(1, **barrier)])
    assert found.kind == "barrier"


def test_different_operations_under_one_number_are_refused() -> None:
    one = trace(about(0), [operation()])
    other = trace(about(1), [operation(kind="broadcast")])
    with pytest.raises(
        ConfigurationError, match=r"all_reduce in trace.0.json, broadcast in trace.1.json.*one run"
    ):
        match_collectives([one, other])


def test_a_group_made_twice_under_one_name_counts_as_two() -> None:
    def member(rank: int) -> RankTrace:
        moments = [10, 20, 30, 40]
        return trace(
            about(rank),
            [
                operation(sequence=sequence, queued_ns=ms * MS, started_ns=ms * MS)
                for sequence, ms in zip([1, 2, 1, 2], moments, strict=True)
            ],
        )

    found = match_collectives([member(0), member(1)])
    assert sorted(c.members for c in found) == [((0, n), (1, n)) for n in range(4)]


def test_groups_of_one_name_and_other_ranks_are_not_mixed_up() -> None:
    traces = [trace(about(rank, 4, groups={"0": [rank]}), [operation()]) for rank in (0, 1)]
    assert match_collectives(traces) == []
