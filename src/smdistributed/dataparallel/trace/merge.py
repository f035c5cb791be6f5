# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes one trace of the traces of a job's ranks, on one clock (see `clock`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from smdistributed.dataparallel.trace.chrome import Event, is_operation, to_nanoseconds
from smdistributed.dataparallel.trace.clock import ClockMap, align_clocks
from smdistributed.dataparallel.trace.matching import Collective, match_collectives
from smdistributed.dataparallel.trace.model import RankTrace

__all__ = ["Arrival", "Job", "describe_clocks", "merge_events", "merged_about", "read_job"]


@dataclasses.dataclass(frozen=True)
class Arrival:
    """When the ranks came to one collective, on the common clock.

    Attributes:
        kind: of the collective.
        started_ns: by index of the trace; ranks without a trace are missing.
        error_ns: how far apart two of the times may be said to be by mistake; None if unknown.
    """

    kind: str
    started_ns: Mapping[int, int]
    error_ns: float | None

    @property
    def first_ns(self) -> int:
        """When the first rank was there."""
        return min(self.started_ns.values())

    @property
    def last(self) -> int:
        """The trace whose rank came last."""
        return max(self.started_ns, key=lambda index: self.started_ns[index])

    @property
    def spread_ns(self) -> int:
        """From the first to the last."""
        return max(self.started_ns.values()) - self.first_ns


@dataclasses.dataclass(frozen=True)
class Job:
    """The traces of a job, ordered by rank, with what relates them."""

    traces: Sequence[RankTrace]
    collectives: Sequence[Collective]
    clocks: Mapping[str, ClockMap]

    def clock_of(self, trace: RankTrace) -> ClockMap:
        """The map of a trace's times to the common clock."""
        return self.clocks[trace.info.clock]

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job whose traces were not given."""
        present = {trace.info.rank for trace in self.traces}
        return [r for r in range(self.traces[0].info.world_size) if r not in present]

    def arrivals(self) -> list[Arrival]:
        """When the ranks came to each collective that several traces have."""
        result = []
        for collective in self.collectives:
            started: dict[int, int] = {}
            clocks: dict[str, float | None] = {}
            for member in collective.members:
                trace = self.traces[member.trace]
                clock = self.clock_of(trace)
                clocks[trace.info.clock] = clock.error_ns
                started[member.trace] = clock(trace.operations[member.operation].started_ns)
            errors = list(clocks.values()) if len(clocks) > 1 else []
            known = [error for error in errors if error is not None]
            total = sum(known) if len(known) == len(errors) else None
            result.append(Arrival(collective.kind, started, total))
        return result


def read_job(traces: Sequence[RankTrace]) -> Job:
    """Relates the traces of a job to each other.

    Args:
        traces: at least one, ordered by rank, as `read_rank_traces` returns them.

    Raises:
        ConfigurationError: the traces are not of one run.
    """
    collectives = match_collectives(traces)
    return Job(traces, collectives, align_clocks(traces, collectives))


def merge_events(job: Job) -> list[Event]:
    """Returns the events of all ranks on the common clock; 0 is when the first recording began.

    To each collective are added how much later than the first rank this one came (`late_us`), and
    which rank came last.
    """
    zero_ns = min(
        job.clock_of(trace)(min(trace.info.origin_ns, trace.info.started_ns))
        for trace in job.traces
    )
    remarks = _arrival_remarks(job)
    events: list[Event] = []
    for index, trace in enumerate(job.traces):
        clock = job.clock_of(trace)
        if len(job.clocks) > 1:
            events.append(_clock_label(trace.info.rank, clock))
        number = itertools.count()
        for event in trace.events:
            args = event.get("args", {})
            if is_operation(event):
                args = {**args, **remarks.get((index, next(number)), {})}
            events.append({**event, **_moved(event, trace, clock, zero_ns), "args": args})
    return events


def merged_about(job: Job) -> dict[str, Any]:
    """Returns what the merged file says about itself."""
    return {
        "format": 1,
        "trace": "merged",
        "version": job.traces[0].info.version,
        "files": [str(trace.path) for trace in job.traces],
        "world_size": job.traces[0].info.world_size,
        "missing_ranks": job.missing_ranks,
        "dropped_operations": sum(trace.info.dropped_operations for trace in job.traces),
        "dropped_spans": sum(trace.info.dropped_spans for trace in job.traces),
        "matched_collectives": len(job.collectives),
        "clocks": [
            {
                "host": next(t.info.host for t in job.traces if t.info.clock == name),
                "ranks": [t.info.rank for t in job.traces if t.info.clock == name],
                "method": clock.method,
                "collectives": clock.collectives,
                "error_us": None if clock.error_ns is None else clock.error_ns / 1000,
                "drift_ppm": [line.drift * 1e6 for _, _, line in clock.steps if line is not None],
            }
            for name, clock in job.clocks.items()
        ],
    }


def describe_clocks(job: Job) -> list[str]:
    """Returns a line per clock that is not the reference: how it was aligned, and how well."""
    lines = []
    for name, clock in job.clocks.items():
        members = [trace.info for trace in job.traces if trace.info.clock == name]
        ranks = " ".join(str(info.rank) for info in members)
        who = f"host {members[0].host} (ranks {ranks})"
        if clock.error_ns is None:
            lines.append(
                f"{who}: no collective in common, placed by the hosts' UTC; the error is unknown"
            )
        elif clock.method == "collectives":
            lines.append(
                f"{who}: aligned by {clock.collectives} collectives, within "
                f"{clock.error_ns / 1000:.1f} us"
            )
    return lines


def _clock_label(rank: int, clock: ClockMap) -> Event:
    if clock.method == "reference":
        text = "reference clock"
    elif clock.error_ns is None:
        text = "clock by UTC, error unknown"
    else:
        text = f"clock within {clock.error_ns / 1000:.1f} us"
    return {"ph": "M", "name": "process_labels", "pid": rank, "tid": 0, "args": {"labels": text}}


def _arrival_remarks(job: Job) -> dict[tuple[int, int], dict[str, Any]]:
    remarks: dict[tuple[int, int], dict[str, Any]] = {}
    for collective, arrival in zip(job.collectives, job.arrivals(), strict=True):
        last = f"rank {job.traces[arrival.last].info.rank}"
        for member in collective.members:
            late_ns = arrival.started_ns[member.trace] - arrival.first_ns
            remarks[member.trace, member.operation] = {"late_us": late_ns / 1000, "came last": last}
    return remarks


def _moved(event: Event, trace: RankTrace, clock: ClockMap, zero_ns: int) -> dict[str, float]:
    """The event's times on the common clock; both ends are mapped, so what nests still does."""
    if "ts" not in event:
        return {}
    started_ns = trace.info.origin_ns + to_nanoseconds(event["ts"])
    moved = {"ts": (clock(started_ns) - zero_ns) / 1000}
    if "dur" in event:
        finished_ns = started_ns + to_nanoseconds(event["dur"])
        moved["dur"] = (clock(finished_ns) - clock(started_ns)) / 1000
    return moved
