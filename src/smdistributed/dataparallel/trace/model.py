# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank's trace consists of, as data: who wrote it, and the engine's operations.

All times are nanoseconds of the writing rank's CLOCK_MONOTONIC.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["FULL_EXCHANGES", "POINT_TO_POINT", "REDUCTIONS", "Operation", "RankInfo", "RankTrace"]

# Collectives that no rank can finish before every rank has started them, because its result needs
# something of each. `all_to_all` is missing: a rank may have nothing to receive.
FULL_EXCHANGES: Final = frozenset({"all_gather", "all_reduce", "barrier", "reduce_scatter"})

REDUCTIONS: Final = frozenset({"all_reduce", "reduce", "reduce_scatter"})
POINT_TO_POINT: Final = frozenset({"recv", "send"})


class Operation(NamedTuple):
    """One operation of the engine, in the order of the fields of its trace.

    Attributes:
        group: name of the group.
        sequence: number of the collective in its group, the same on all ranks; 0 for sends and
            receives.
        kind: "all_reduce", "send", ...
        dtype, reduce_op: names; empty where there is none.
        num_bytes: what the rank put in or took out, whichever is more; of an `all_gather` that is
            the whole output, of a `reduce_scatter` the whole input.
        algorithm: how it was carried out; "shared" is without a copy, "alone" without a peer.
        queued_ns: when the caller submitted it.
        started_ns: when it became the head of its group's queue and began.
        arrived_ns: when every other rank had been seen in it; 0 if unknown, as without shared
            memory.
        finished_ns: when it was complete on this rank.
        driver: "caller" if the thread that called it carried it out, hence waited; or "progress".
        error: why it failed; empty if it did not.
    """

    group: str
    sequence: int
    kind: str
    dtype: str
    reduce_op: str
    num_bytes: int
    algorithm: str
    queued_ns: int
    started_ns: int
    arrived_ns: int
    finished_ns: int
    driver: str
    error: str

    @property
    def waited_ns(self) -> int:
        """How long it waited for other ranks after it had started here; 0 if unknown."""
        return max(0, self.arrived_ns - self.started_ns) if self.arrived_ns else 0


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """Who wrote a trace, by which clock, and what is missing in it.

    Attributes:
        rank, world_size: of the process in its job.
        job: text that is equal for traces of one job; empty if unknown.
        host, pid: where it ran.
        clock: name of the clock; processes with equal names read the same one.
        origin_ns: clock reading that is 0 in the file.
        wall_offset_ns: UTC minus that clock, as the host knew it.
        started_ns, stopped_ns: when the recording began and ended.
        dropped_operations, dropped_spans: later ones that the bounded memory had no room for.
        groups: group name to its ranks in the job, as far as known.
        version: of the library.
    """

    rank: int
    world_size: int
    job: str
    host: str
    pid: int
    clock: str
    origin_ns: int
    wall_offset_ns: int
    started_ns: int
    stopped_ns: int
    dropped_operations: int
    dropped_spans: int
    groups: dict[str, list[int]]
    version: str

    @property
    def title(self) -> str:
        """What a viewer calls the process."""
        return f"rank {self.rank} ({self.host}, pid {self.pid})"

    def ranks_of(self, group: str) -> list[int] | None:
        """Ranks of a group in the job, or None if unknown."""
        return self.groups.get(group)


@dataclasses.dataclass(frozen=True)
class RankTrace:
    """One rank's trace: `events` are Chrome trace events, times in microseconds since the origin.

    `operations` says the same of the engine's part, exactly.
    """

    path: Path
    info: RankInfo
    events: list[dict[str, Any]]
    operations: list[Operation]
