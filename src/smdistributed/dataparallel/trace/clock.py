# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the clocks of several hosts on one, from the collectives that their ranks did together.

Ranks on one host read the same CLOCK_MONOTONIC, to the nanosecond. Between hosts nothing is known
but this: no rank finishes an all-reduce before every rank has started it. With θ(t) the unknown
amount to add to a reading t of host B's clock to get host A's, every such collective says

    startB + θ(startB) ≤ finishA      hence   θ(startB)  ≤ finishA - startB      an upper bound
    startA ≤ finishB + θ(finishB)     hence   θ(finishB) ≥ startA - finishB      a lower bound

with the last start and the first finish of each host's ranks, which bound best. Two oscillators
differ in rate, by some 10 parts per million, but steadily: θ is sought as a line α + β t. Each
bound is a half plane of (α, β), so what fits all of them is a convex polygon.

    θ │      ×   ×       ×    upper bounds
      │    ─────────────────  the line with the widest gap to both
      │  ×    ×       ×  ×    lower bounds
      └────────────────────▶ t

- The estimate is the line whose smallest vertical distance to the bounds is the largest. It keeps
  every bound, so nothing in the merged trace happens before its cause.
- The stated error is the largest difference, anywhere in the trace, between that line and any other
  of the polygon. The true line is one of them, whatever the delays were: this is a bound, not a
  standard deviation. Bounds are facts about causes, so no outlier has to be voted down.
- If no line fits, the rates were not steady, or the files are of different runs. A small excess is
  added to the error; a large one is refused.

Cost: O(n log n) for n collectives of a pair of hosts, however many are corners of the hulls.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from smdistributed._common.errors import ConfigurationError
from smdistributed.dataparallel.trace.matching import Collective
from smdistributed.dataparallel.trace.model import RankTrace

__all__ = ["MAX_DRIFT", "ClockMap", "Line", "Point", "align_clocks", "fit_line"]

# Linux slews a clock by at most 500 parts per million, so two differ by at most twice that.
MAX_DRIFT: Final = 1e-3

# What bounds may contradict each other by before the traces are held to be of different runs.
_TOLERANCE_NS: Final = 10_000_000


class Point(NamedTuple):
    """A bound on the offset: at a reading of the clock to be mapped, in ns."""

    at: float
    offset: float


@dataclasses.dataclass(frozen=True)
class Line:
    """offset(t) = `offset` + `drift` * (t - `center`), all in ns, right within ± `error`."""

    offset: float
    drift: float
    center: float
    error: float
    excess: float = 0.0

    def __call__(self, at: float) -> float:
        """Returns the offset at a reading."""
        return self.offset + self.drift * (at - self.center)


@dataclasses.dataclass(frozen=True)
class ClockMap:
    """How to read a clock on the reference clock.

    Attributes:
        method: "reference", "collectives" or "wall clock".
        steps: each adds to a time an offset and what a line gives for its distance from a reading.
            Readings of 10^16 ns have no exact float, so the large parts stay integers.
        error_ns: how far a mapped time may be off; None if nobody can say.
        collectives: how many tie this clock to the one before it.
    """

    method: str
    steps: tuple[tuple[int, int, Line | None], ...] = ()  # (reading, offset, line)
    error_ns: float | None = 0.0
    collectives: int = 0

    def __call__(self, time_ns: int) -> int:
        """Returns a time of this clock on the reference clock."""
        for base_ns, base_offset_ns, line in self.steps:
            shift = line(time_ns - base_ns) if line is not None else 0.0
            time_ns += base_offset_ns + round(shift)
        return time_ns


def align_clocks(
    traces: Sequence[RankTrace], collectives: Sequence[Collective]
) -> dict[str, ClockMap]:
    """Returns a map for every clock of `traces` to that of the first trace.

    A clock that shares no collective with the reference goes through one that does, by as few
    steps as possible. One that cannot be reached so is placed by the hosts' UTC.

    Raises:
        ConfigurationError: what the traces say contradicts itself, so they are of different runs.
    """
    _check_order_within_hosts(traces, collectives)
    names = list(dict.fromkeys(trace.info.clock for trace in traces))
    aligned = {names[0]: ClockMap("reference")}
    reached = [names[0]]
    for known in reached:  # grows meanwhile
        for name in names:
            if name not in aligned:
                tie = _tie(traces, collectives, known, name)
                if tie is not None:
                    aligned[name] = _through(tie, aligned[known])
                    reached.append(name)
    return aligned | {
        name: _by_wall_clock(traces, names[0], name) for name in names if name not in aligned
    }


def fit_line(lower: Sequence[Point], upper: Sequence[Point], span: tuple[float, float]) -> Line:
    """Returns the line with the widest vertical gap to `lower` below it and `upper` above it.

    Args:
        lower, upper: bounds, at least one of each.
        span: where the line is to be used; the error holds there.

    Within a fixed drift β the free room is g(β) = min(upper - β at) - max(lower - β at), a concave
    function made of straight pieces, whose corners are slopes of the two convex hulls' edges. So
    looking at those slopes finds the best drift, and all drifts that fit, exactly.
    """
    center = (span[0] + span[1]) / 2
    ceiling = _Least([Point(p.at - center, p.offset) for p in upper])
    # The greatest value over the lower bounds is minus the least over their mirror images.
    mirrored_ground = _Least([Point(p.at - center, -p.offset) for p in lower])

    def ground(drift: float) -> float:
        return -mirrored_ground(-drift)

    def gap(drift: float) -> float:
        return ceiling(drift) - ground(drift)

    slopes = [*ceiling.slopes, *(-slope for slope in mirrored_ground.slopes)]
    drifts = sorted({0.0, -MAX_DRIFT, MAX_DRIFT, *(s for s in slopes if abs(s) < MAX_DRIFT)})
    # Of equals the smallest drift: a single collective fits any.
    best = max(drifts, key=lambda drift: (gap(drift), -abs(drift)))
    offset = (ceiling(best) + ground(best)) / 2
    excess = max(0.0, -gap(best) / 2)
    fitting = _where_not_negative(gap, drifts) or [best]
    error = max(
        abs(bound(drift) + (drift - best) * (at - center) - offset)
        for drift in fitting
        for bound in (ceiling, ground)
        for at in span
    )
    return Line(offset, best, center, error + excess, excess)


def _where_not_negative(
    function: Callable[[float], float], corners: Sequence[float]
) -> list[float]:
    """Returns the corners where a concave function is not negative, and its zeros between them."""
    values = [function(corner) for corner in corners]
    places = [corner for corner, value in zip(corners, values, strict=True) if value >= 0]
    for (a, fa), (b, fb) in itertools.pairwise(zip(corners, values, strict=True)):
        if (fa < 0) != (fb < 0):
            places.append(a + (b - a) * fa / (fa - fb))
    return places


def _lower_hull(points: Sequence[Point]) -> list[Point]:
    """Returns the corners of the lower convex hull, from left to right (monotone chain)."""
    hull: list[Point] = []
    for point in sorted(set(points)):
        if hull and hull[-1].at == point.at:
            continue  # sorted: the lower one came first
        while len(hull) >= 2 and _turns_right(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _turns_right(a: Point, b: Point, c: Point) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b.offset - a.offset) * (c.at - a.at) >= (c.offset - a.offset) * (b.at - a.at)


class _Least:
    """min(offset - drift * at) over points, as a function of the drift.

    It is taken where a line of that slope touches the lower convex hull from below, between the
    edges that are less steep and those that are steeper: found among h corners in O(log h).

    Attributes:
        slopes: of the hull's edges, ascending; the corners of the function.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self._hull = _lower_hull(points)
        self.slopes = [
            (b.offset - a.offset) / (b.at - a.at) for a, b in itertools.pairwise(self._hull)
        ]

    def __call__(self, drift: float) -> float:
        corner = self._hull[bisect.bisect_left(self.slopes, drift)]
        return corner.offset - drift * corner.at


def _through(tie: ClockMap, known: ClockMap) -> ClockMap:
    """The map of a clock that is tied to a known one."""
    assert tie.error_ns is not None
    assert known.error_ns is not None
    return dataclasses.replace(
        tie, steps=(*tie.steps, *known.steps), error_ns=tie.error_ns + known.error_ns
    )


def _tie(
    traces: Sequence[RankTrace], collectives: Sequence[Collective], known: str, name: str
) -> ClockMap | None:
    """Returns the map from clock `name` to clock `known`, or None if nothing ties them."""
    base_ns, base_offset_ns = 0, 0
    lower: list[Point] = []
    upper: list[Point] = []
    for collective in collectives:
        ours = _extremes(traces, collective, known)
        theirs = _extremes(traces, collective, name)
        if ours is None or theirs is None:
            continue
        if not lower:
            # Differences from the first bound are small enough for floats.
            base_ns, base_offset_ns = theirs.last_start, ours.first_finish - theirs.last_start
        lower.append(
            Point(
                theirs.first_finish - base_ns,
                ours.last_start - theirs.first_finish - base_offset_ns,
            )
        )
        upper.append(
            Point(
                theirs.last_start - base_ns, ours.first_finish - theirs.last_start - base_offset_ns
            )
        )
    if not lower:
        return None
    infos = [trace.info for trace in traces if trace.info.clock == name]
    span = (
        min(info.started_ns for info in infos) - base_ns,
        max(info.stopped_ns for info in infos) - base_ns,
    )
    line = fit_line(lower, upper, span)
    if line.excess > _TOLERANCE_NS:
        one, other = (_first(traces, clock).path for clock in (known, name))
        raise ConfigurationError(
            f"no clock difference between the hosts of {one} and {other} fits what their "
            f"{len(lower)} common collectives say; the best is {line.excess / 1e6:.0f} ms short. "
            "Expected traces of one run, on hosts that were not suspended. Give files of one run."
        )
    return ClockMap(
        "collectives", ((base_ns, base_offset_ns, line),), line.error, collectives=len(lower)
    )


class _Extremes(NamedTuple):
    """Of the ranks that read one clock, in one collective."""

    last_start: int
    first_finish: int


def _extremes(traces: Sequence[RankTrace], collective: Collective, clock: str) -> _Extremes | None:
    operations = [
        traces[member.trace].operations[member.operation]
        for member in collective.members
        if traces[member.trace].info.clock == clock
    ]
    if not operations:
        return None
    return _Extremes(
        max(op.started_ns for op in operations), min(op.finished_ns for op in operations)
    )


def _check_order_within_hosts(
    traces: Sequence[RankTrace], collectives: Sequence[Collective]
) -> None:
    """Raises ConfigurationError if ranks that read one clock finished before others started."""
    for collective in collectives:
        for clock in {traces[member.trace].info.clock for member in collective.members}:
            extremes = _extremes(traces, collective, clock)
            assert extremes is not None
            short_ns = extremes.last_start - extremes.first_finish
            if short_ns > _TOLERANCE_NS:
                paths = [
                    str(traces[m.trace].path)
                    for m in collective.members
                    if traces[m.trace].info.clock == clock
                ]
                raise ConfigurationError(
                    f"an {collective.kind} ended on one rank {short_ns / 1e6:.0f} ms before another"
                    f" started it, by the same clock, in {', '.join(paths[:4])}; expected traces of"
                    " one run. Give the files of one run: old ones may lie beside new ones."
                )


def _by_wall_clock(traces: Sequence[RankTrace], reference: str, name: str) -> ClockMap:
    offset_ns = (
        _first(traces, name).info.wall_offset_ns - _first(traces, reference).info.wall_offset_ns
    )
    return ClockMap("wall clock", ((0, offset_ns, None),), None)


def _first(traces: Sequence[RankTrace], clock: str) -> RankTrace:
    return next(trace for trace in traces if trace.info.clock == clock)
