# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Records when each rank does what in an all_reduce: staged, and on shared buffers.

    smddprun -np 2 python benchmarks/why_fast/run.py

The engine's own trace is what is recorded. Both kinds take turns; the call with the median time of
each kind is written into `results/`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import numpy as np
from common.result_files import ResultFile

import smdistributed.dataparallel as sdp
from smdistributed import collectives
from smdistributed.dataparallel.trace.files import read_rank_trace

BUFFER_BYTES = 25 << 20
WARM_UP_CALLS = 10
CALLS = 21
HERE = Path(__file__).resolve().parent


def _buffers(communicator: Any) -> dict[str, Any]:
    """A buffer for each algorithm, by its name in a trace. Raises `SystemExit`."""
    memory = communicator.allocate_shared(BUFFER_BYTES)
    if memory is None:
        raise SystemExit(
            "there is no shared memory to be had; expected two or more ranks on one host. Start"
            " this with smddprun -np 2."
        )
    buffers = {"shared": memory.view(np.float32), "staged": np.empty(BUFFER_BYTES // 4, np.float32)}
    for buffer in buffers.values():
        buffer.fill(0)
    return buffers


def _record(communicator: Any, buffers: dict[str, Any]) -> dict[str, Any]:
    """Times of all calls of this rank: int64 of shape `[CALLS, 3]` for each algorithm, in ns."""
    for buffer in buffers.values():
        for _ in range(WARM_UP_CALLS):
            communicator.all_reduce(buffer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        sdp.start_profiler(str(path), append_rank=False)
        for _ in range(CALLS):
            for buffer in buffers.values():
                communicator.barrier()
                communicator.all_reduce(buffer)
        sdp.stop_profiler()
        operations = read_rank_trace(path).operations
    found = {
        name: [
            (op.started_ns, op.arrived_ns, op.finished_ns)
            for op in operations
            if op.kind == "all_reduce" and op.algorithm == name
        ]
        for name in buffers
    }
    for name, times in found.items():
        if len(times) != CALLS:
            raise SystemExit(
                f"{len(times)} of {CALLS} calls came out as {name}; expected all. Unset SMDDP_*"
                " variables, and run all ranks on one host."
            )
    return {name: np.array(times, np.int64) for name, times in found.items()}


def _median_call(times: Any) -> list[list[float]]:
    """The call of median duration: for each rank start, arrival of all, and end, in µs."""
    durations = times[:, :, 2].max(axis=0) - times[:, :, 0].min(axis=0)
    call = int(np.argsort(durations)[len(durations) // 2])
    chosen = (times[:, call] - times[:, call, 0].min()) / 1e3
    return [[round(float(value), 1) for value in rank] for rank in chosen]


def main() -> None:
    """One rank; rank 0 writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    with collectives.init() as communicator:
        recorded = _record(communicator, _buffers(communicator))
        calls = {}
        for name, times in recorded.items():
            gathered = np.empty((communicator.world_size, *times.shape), np.int64)
            communicator.all_gather(gathered, times)
            calls[name] = _median_call(gathered)
        if communicator.rank != 0:
            return
    file = ResultFile(HERE, arguments.out)
    file.write(
        command=f"smddprun -np {len(calls['shared'])} python benchmarks/why_fast/run.py",
        buffer_bytes=BUFFER_BYTES,
        calls_us=calls,
    )
    for name, ranks in calls.items():
        print(f"{name}: {max(end for _, _, end in ranks):.0f} us")
    print(f"results: {file.name}")


if __name__ == "__main__":
    main()
