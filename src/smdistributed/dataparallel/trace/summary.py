# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The text that answers "why is my job slow": what was reduced, who waited, and for whom.

Words: a collective's *duration* is from its start on a rank to its end there; the part until all
other ranks had been seen in it is *waiting*. *Exposed* is what the training thread itself spent
waiting, for a collective or for other ranks; what runs beside the backward pass is hidden.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from smdistributed.dataparallel.trace.chrome import bus_bandwidth, format_bytes, to_nanoseconds
from smdistributed.dataparallel.trace.merge import Job, describe_clocks
from smdistributed.dataparallel.trace.model import POINT_TO_POINT, Operation, RankTrace

__all__ = ["percentile", "summarise", "union_ns"]

# Who comes last by less is luck.
_SMALLEST_LATENESS_NS: Final = 10_000

Row = Sequence[str]


def summarise(job: Job, max_rows: int | None = 20) -> str:
    """Returns the summary of a job's traces.

    Args:
        job: the traces.
        max_rows: of the table of operations, those with the largest total time; None for all.
    """
    parts = [_heading(job), _operations(job, max_rows), _stragglers(job), _ranks(job)]
    return "\n\n".join(part for part in parts if part) + "\n"


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Returns how long at least one of the (from, to) intervals lasted."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total += end - start
        elif end > reached:
            total += end - reached
        reached = end if reached is None else max(reached, end)
    return total


def _heading(job: Job) -> str:
    first = job.traces[0].info
    recorded_s = max(t.info.stopped_ns - t.info.started_ns for t in job.traces) / 1e9
    found = f"{len(job.collectives)} collectives found on several ranks"
    lines = [
        f"{len(job.traces)} of {first.world_size} rank(s), {recorded_s:.1f} s recorded, {found}"
    ]
    if job.missing_ranks:
        lines.append(f"no trace of rank(s) {' '.join(map(str, job.missing_ranks))}")
    dropped = sum(t.info.dropped_operations + t.info.dropped_spans for t in job.traces)
    if dropped:
        lines.append(
            f"{dropped} later events had no room: the beginning of the recording is what you see"
        )
    failed = {op.error for trace in job.traces for op in trace.operations if op.error}
    lines += [f"failed: {error}" for error in sorted(failed)[:5]]
    return "\n".join(lines + describe_clocks(job))


def _operations(job: Job, max_rows: int | None) -> str:
    groups: dict[tuple[str, str, str, str], list[tuple[Operation, int | None]]] = {}
    for trace in job.traces:
        for op in trace.operations:
            if not op.error:
                ranks = trace.info.ranks_of(op.group)
                size = format_bytes(op.num_bytes) if op.num_bytes else ""
                key = (op.kind, size, op.dtype, op.algorithm)
                groups.setdefault(key, []).append((op, len(ranks) if ranks else None))
    if not groups:
        return "No operations were recorded: was there a collective between start and stop?"
    ordered = sorted(
        groups.items(), key=lambda item: -sum(op.finished_ns - op.started_ns for op, _ in item[1])
    )
    shown = ordered if max_rows is None else ordered[:max_rows]
    rows: list[Row] = [
        ("operation", "size", "dtype", "algorithm", "count", "median", "p95", "waiting", "bus GB/s")
    ]
    for (kind, size, dtype, algorithm), members in shown:
        durations = [op.finished_ns - op.started_ns for op, _ in members]
        speeds = [s for op, n in members if (s := bus_bandwidth(op, n))]
        is_message = kind in POINT_TO_POINT
        rows.append(
            (
                kind,
                size,
                dtype,
                algorithm,
                str(len(members)),
                _time(statistics.median(durations)),
                _time(percentile(durations, 0.95)),
                ""
                if is_message
                else _share(sum(op.waited_ns for op, _ in members), sum(durations)),
                f"{statistics.median(speeds):.2f}" if speeds else "",
            )
        )
    text = "Operations, all ranks together, by total time\n" + _table(rows, text_columns=4)
    if len(shown) < len(ordered):
        text += f"\n({len(ordered) - len(shown)} more: --all)"
    return text


def _stragglers(job: Job) -> str:
    """Which rank the others wait for."""
    arrivals = [a for a in job.arrivals() if a.error_ns is not None]
    if not arrivals:
        return ""
    late: dict[int, list[int]] = {index: [] for index in range(len(job.traces))}
    cost_ns = dict.fromkeys(late, 0)
    for arrival in arrivals:
        if arrival.spread_ns > max(_SMALLEST_LATENESS_NS, arrival.error_ns or 0):
            late[arrival.last].append(arrival.spread_ns)
            last_ns = arrival.started_ns[arrival.last]
            cost_ns[arrival.last] += sum(last_ns - ns for ns in arrival.started_ns.values())
    rows: list[Row] = [("rank", "host", "comes last", "share", "by (median)", "others waited")]
    for index, trace in enumerate(job.traces):
        lateness = late[index]
        rows.append(
            (
                str(trace.info.rank),
                trace.info.host,
                str(len(lateness)),
                _share(len(lateness), len(arrivals)),
                _time(statistics.median(lateness)) if lateness else "",
                _time(cost_ns[index]),
            )
        )
    return (
        f"Who comes last to a collective, of {len(arrivals)} (differences above "
        f"{_SMALLEST_LATENESS_NS // 1000} us and the clocks' error)\n" + _table(rows, 2)
    )


def _ranks(job: Job) -> str:
    """What each rank spent, and what of it held up the training thread."""
    rows: list[Row] = [
        (
            "rank",
            "recorded",
            "in collectives",
            "waiting",
            "exposed",
            "share",
            "steps",
            "step",
            "exposed per step",
        )
    ]
    for trace in job.traces:
        collectives = [op for op in trace.operations if op.kind not in POINT_TO_POINT]
        recorded_ns = trace.info.stopped_ns - trace.info.started_ns
        exposed = _exposed(trace)
        steps = _outermost(_spans(trace, "step"))
        per_step = [_within(exposed, step) for step in steps]
        rows.append(
            (
                str(trace.info.rank),
                _time(recorded_ns),
                _time(union_ns((op.started_ns, op.finished_ns) for op in collectives)),
                _time(sum(op.waited_ns for op in collectives)),
                _time(union_ns(exposed)),
                _share(union_ns(exposed), recorded_ns),
                str(len(steps)) if steps else "",
                _time(statistics.median(end - start for start, end in steps)) if steps else "",
                _time(statistics.median(per_step)) if steps else "",
            )
        )
    text = "Ranks (medians per step)\n" + _table(rows, text_columns=1)
    if not any(_spans(trace, "step") for trace in job.traces):
        text += (
            '\nSteps are not marked; with trace.span("step", track="step") around each, of '
            "smdistributed.dataparallel, this table has figures per step."
        )
    return text


def _exposed(trace: RankTrace) -> list[tuple[int, int]]:
    """When the training thread stood still: waiting for a handle, or busy with an operation."""
    blocking = [(op.started_ns, op.finished_ns) for op in trace.operations if op.driver == "caller"]
    return _spans(trace, "wait") + blocking


def _spans(trace: RankTrace, track: str) -> list[tuple[int, int]]:
    result = []
    for event in trace.events:
        if event.get("cat") == track and event.get("ph") == "X":
            started_ns = trace.info.origin_ns + to_nanoseconds(event["ts"])
            result.append((started_ns, started_ns + to_nanoseconds(event["dur"])))
    return result


def _outermost(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the intervals that are in no other: a step, not its forward and its backward."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(intervals, key=lambda interval: (interval[0], -interval[1])):
        if not result or end > result[-1][1]:
            result.append((start, end))
    return result


def _within(intervals: Sequence[tuple[int, int]], frame: tuple[int, int]) -> int:
    start, end = frame
    return union_ns((max(a, start), min(b, end)) for a, b in intervals if a < end and b > start)


def _time(duration_ns: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if duration_ns >= unit:
            value = duration_ns / unit
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
    return f"{duration_ns:.0f} ns"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def _table(rows: Sequence[Row], text_columns: int) -> str:
    """Returns rows as aligned columns, the first `text_columns` to the left, numbers to the right.

    A column that is empty below its heading is left out.
    """
    kept = [c for c in range(len(rows[0])) if any(row[c] for row in rows[1:])]
    widths = {c: max(len(row[c]) for row in rows) for c in kept}
    lines = []
    for row in rows:
        cells = [
            row[c].ljust(widths[c]) if c < text_columns else row[c].rjust(widths[c]) for c in kept
        ]
        lines.append("  ".join(["", *cells]).rstrip())
    return "\n".join(lines)
