# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that never ran: records of a pipeline made from a schedule, on any clocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from smdistributed.modelparallel.decide.schedules.simulation import Visit, predict
from smdistributed.modelparallel.report.costs import Row, Settings
from smdistributed.modelparallel.report.records import (
    Memory,
    RankRecord,
    Sent,
    StepRecord,
    Stretch,
)

MS = 1_000_000
ROWS = (
    Row("main", 0, 10),
    Row("main/a", 0, 100, can_move=True),
    Row("main/b", 1, 100, can_move=True),
    Row("main/c", 1, 100, can_move=True),
)


def settings(microbatches: int = 4, **changes: object) -> Settings:
    """Two partitions, cut by hand."""
    chosen = {"active_microbatches": min(4, microbatches), "auto_partition": False, **changes}
    return dataclasses.replace(Settings(2, microbatches, 1), **chosen)  # type: ignore[arg-type]


def records(
    way: Sequence[Visit],
    chosen: Settings,
    *,
    steps: int = 3,
    offsets_ns: Sequence[int] = (0, 0),
    late_ns: int = 0,
    module_seconds: Sequence[dict[str, float]] = ({"main/a": 1.0}, {"main/b": 1.0, "main/c": 1.0}),
) -> list[RankRecord]:
    """What ranks would have recorded that keep to the schedule.

    Args:
        way: of a microbatch, in milliseconds instead of seconds.
        offsets_ns: what the clock of each rank is ahead; other than 0 is another host's.
        late_ns: what each step takes longer than the schedule says.
    """
    predicted = predict(chosen.schedule(), way)
    length = round(predicted.makespan_s * MS) + late_ns
    found = []
    for rank in range(chosen.partitions):
        offset = offsets_ns[rank]
        recorded = []
        for number in range(1, steps + 1):
            begin = 1000 * MS * number + offset
            stretches = tuple(
                Stretch(
                    run.task.phase.value,
                    run.task.microbatch,
                    begin + round(run.begin_s * MS),
                    begin + round(run.end_s * MS),
                    "" if rank == 0 else "main/b ... main/c",
                )
                for run in predicted.runs[rank]
            )
            # Hears of the end a little later than the leader says it.
            end = begin + length + 20_000 * (rank > 0)
            told = begin + length - 10_000
            microbatches = chosen.microbatches if rank == 0 else 0
            sent = (Sent(1 - rank, "Call" if rank == 0 else "Gradients", 4, 4096),)
            recorded.append(StepRecord(number, microbatches, begin, end, told, stretches, sent))
        order = [path for path in module_seconds[rank] if path]
        found.append(
            RankRecord(
                rank=rank,
                world_size=2,
                partition=rank,
                members=(0, 1),
                host=f"host{offset}",
                pid=100 + rank,
                clock=f"clock{offset}",
                wall_offset_ns=-offset,
                version="0",
                settings=chosen,
                rows=ROWS,
                order=tuple((path, 1000 * MS * (rank + 1) + i) for i, path in enumerate(order)),
                module_seconds=module_seconds[rank],
                memory=Memory(1000, 0, 2000, 0, 500 * (rank + 1), True),
                steps=tuple(recorded),
            )
        )
    return found
