# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks have recorded as traces of smddptrace: one clock, one file format for both.

Steps stand in for collectives: no rank ends one before the last message of every rank has come, so
they tie the clocks of several hosts together as a barrier does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smdistributed.dataparallel.trace.chrome import document_events
from smdistributed.dataparallel.trace.files import write_trace
from smdistributed.dataparallel.trace.merge import Job, merge_events, merged_about, read_job
from smdistributed.dataparallel.trace.model import Operation, RankInfo, RankTrace
from smdistributed.dataparallel.trace.recorder import PythonEvent
from smdistributed.modelparallel.report.records import RankRecord, StepRecord

__all__ = ["clocks_of", "write_perfetto"]

_GROUP = "pipeline"


def clocks_of(records: Sequence[RankRecord]) -> list[Callable[[int], int]]:
    """By record, what puts its times on the clock of the first one.

    Raises:
        ConfigurationError: the records are not of one run.
    """
    job = _job(records)
    by_rank = {trace.info.rank: job.clock_of(trace) for trace in job.traces}
    return [by_rank[record.rank] for record in records]


def write_perfetto(path: str | Path, records: Sequence[RankRecord]) -> None:
    """Writes one trace of all ranks, which https://ui.perfetto.dev opens.

    Raises:
        ConfigurationError: the records are not of one run.
        OSError: the file cannot be written.
    """
    job = _job(records)
    write_trace(Path(path), merge_events(job), merged_about(job))


def _job(records: Sequence[RankRecord]) -> Job:
    return read_job([_trace(record) for record in sorted(records, key=lambda each: each.rank)])


def _trace(record: RankRecord) -> RankTrace:
    begin = min(step.begin_ns for step in record.steps)
    info = RankInfo(
        rank=record.rank,
        world_size=record.world_size,
        job="",
        host=record.host,
        pid=record.pid,
        clock=record.clock,
        origin_ns=begin,
        wall_offset_ns=record.wall_offset_ns,
        started_ns=begin,
        stopped_ns=max(step.end_ns for step in record.steps),
        dropped_operations=0,
        dropped_spans=0,
        groups={_GROUP: list(record.members)},
        version=record.version,
    )
    events = document_events(info, _spans(record), ())
    return RankTrace(
        Path(f"rank {record.rank}"), info, events, [_meeting(step) for step in record.steps]
    )


def _spans(record: RankRecord) -> list[PythonEvent]:
    spans = []
    for step in record.steps:
        args: dict[str, Any] = {f"{each.kind} to {each.dest}": each.num_bytes for each in step.sent}
        name = f"step {step.number}"
        spans.append(PythonEvent(name, "step", "", step.begin_ns, step.end_ns, args))
        spans += [
            PythonEvent(
                f"{stretch.phase}{stretch.microbatch}",
                f"partition {record.partition}",
                "",
                stretch.begin_ns,
                stretch.end_ns,
                {"modules": stretch.what or "step function"},
            )
            for stretch in step.stretches
        ]
    return spans


def _meeting(step: StepRecord) -> Operation:
    return Operation(
        group=_GROUP,
        sequence=step.number,
        kind="barrier",
        dtype="",
        reduce_op="",
        num_bytes=0,
        algorithm="",
        queued_ns=step.told_ns,
        started_ns=step.told_ns,
        arrived_ns=0,
        finished_ns=step.end_ns,
        driver="caller",
        error="",
    )
