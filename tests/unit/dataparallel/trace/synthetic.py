# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that never ran: traces whose true times, clocks and delays are known.

True time is a count of nanoseconds. A host reads `offset + (1 + drift) * true`.
"""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

from smdistributed.dataparallel.trace.chrome import document_events
from smdistributed.dataparallel.trace.model import Operation, RankInfo, RankTrace
from smdistributed.dataparallel.trace.recorder import PythonEvent

MS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Host:
    name: str
    offset_ns: int = 0
    drift: float = 0.0

    def read(self, true_ns: int) -> int:
        return self.offset_ns + true_ns + round(self.drift * true_ns)


def operation(**changes: object) -> Operation:
    """An operation that started at 1 ms, waited until 2 ms and ended at 3 ms, unless told."""
    usual = Operation(
        group="0",
        sequence=1,
        kind="all_reduce",
        dtype="float32",
        reduce_op="SUM",
        num_bytes=4096,
        algorithm="staged",
        queued_ns=1 * MS,
        started_ns=1 * MS,
        arrived_ns=2 * MS,
        finished_ns=3 * MS,
        driver="progress",
        error="",
    )
    return usual._replace(**changes)  # type: ignore[arg-type]


def info(
    rank: int = 0, world_size: int = 2, host: Host | None = None, **changes: object
) -> RankInfo:
    host = host or Host("a")
    usual = RankInfo(
        rank=rank,
        world_size=world_size,
        job="job",
        host=host.name,
        pid=100 + rank,
        clock=host.name,
        origin_ns=host.read(0),
        wall_offset_ns=10**18 - host.offset_ns,
        started_ns=host.read(0),
        stopped_ns=host.read(100 * MS),
        dropped_operations=0,
        dropped_spans=0,
        groups={"0": list(range(world_size))},
        version="1",
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def trace(
    about: RankInfo, operations: Sequence[Operation] = (), spans: Sequence[PythonEvent] = ()
) -> RankTrace:
    """As read from the file that a rank with these events would have written."""
    events = document_events(about, spans, operations)
    return RankTrace(Path(f"trace.{about.rank}.json"), about, events, list(operations))


def simulate(
    hosts: Sequence[Host],
    *,
    num_collectives: int = 20,
    seed: int = 0,
    step_ns: int = 5 * MS,
    slow_rank: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> list[RankTrace]:
    """Runs a job of one rank per entry of `hosts`, each collective after some computing.

    Args:
        slow_rank: computes twice as long as any other.
        groups: ranks of the groups, each of which does `num_collectives`; default: all ranks.
    """
    rng = random.Random(seed)
    groups = groups if groups is not None else [range(len(hosts))]
    now_ns = [rng.randrange(MS) for _ in hosts]  # true time of each rank
    operations: list[list[Operation]] = [[] for _ in hosts]
    for sequence in range(1, num_collectives + 1):
        for number, ranks in enumerate(groups):
            for rank in ranks:
                factor = 2.0 if rank == slow_rank else rng.uniform(0.2, 1.0)
                now_ns[rank] += int(step_ns * factor)
            started = {rank: now_ns[rank] for rank in ranks}
            all_there = max(started.values())
            for rank in ranks:
                # What crosses a network takes its time, and not the same in both directions.
                now_ns[rank] = all_there + rng.randrange(20_000, 600_000)
                read = hosts[rank].read
                operations[rank].append(
                    operation(
                        group=str(number),
                        sequence=sequence,
                        num_bytes=2**20,
                        queued_ns=read(started[rank] - 1000),
                        started_ns=read(started[rank]),
                        arrived_ns=read(all_there + 5000),
                        finished_ns=read(now_ns[rank]),
                    )
                )
    named = {str(number): list(ranks) for number, ranks in enumerate(groups)}
    return [
        trace(
            info(rank, len(hosts), host, groups=named, stopped_ns=host.read(max(now_ns))),
            operations[rank],
        )
        for rank, host in enumerate(hosts)
    ]
