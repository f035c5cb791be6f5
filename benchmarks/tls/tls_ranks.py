# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of run.py do: all_reduce in the clear and inside TLS, taking turns."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Samples:
    """Of one rank, one entry per call: seconds, and seconds of processor of this process."""

    wall_s: list[float]
    cpu_s: list[float]


def measure(
    rank: int, world_size: int, files: tuple[str, str, str], size_bytes: int, rounds: int
) -> dict[str, Samples]:
    """Two groups of the same ranks, each with its own connections; a call of each per round."""
    import numpy as np

    from smdistributed import collectives
    from smdistributed._common.engine_options import EngineOptions

    with collectives.init(name="outer") as outer:
        groups: dict[str, Any] = {}
        for name, tls in (("clear", None), ("tls", files)):
            # Through the group that is there: the values are the same on all ranks at once.
            groups[name] = collectives.Communicator(
                rank,
                world_size,
                lambda key, value: outer._exchange_bytes(value),
                EngineOptions(transport="tcp", token=b"benchmark", tls=tls),
                name=name,
            )
        array = np.empty(size_bytes // 4, dtype=np.float32)
        samples = {name: Samples([], []) for name in groups}
        for number in range(rounds + 1):
            for name, group in groups.items():
                array.fill(rank + 1)
                outer.barrier()
                begin, busy = time.perf_counter(), _cpu_seconds()
                group.all_reduce(array)
                wall, cpu = time.perf_counter() - begin, _cpu_seconds() - busy
                assert (array == sum(range(1, world_size + 1))).all(), f"wrong sum over {name}"
                if number > 0:  # the first opens connections and touches memory
                    samples[name].wall_s.append(wall)
                    samples[name].cpu_s.append(cpu)
        outer.barrier()
        for group in groups.values():
            group.close()
        return samples


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
