# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of `two_versions.py`: takes our steps when it is told how many.

Whichever library `PYTHONPATH` finds is measured; model and step are this checkout's.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import torch
import torch.distributed as dist
from models import SHAPES
from rank import WARM_UP, smp_step

import smdistributed
import smdistributed.modelparallel.torch as smp


def main() -> None:
    """Rank 0 answers each line, a number of steps, with seconds of one step; 0 ends all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--socket", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    smp.init(
        {
            "partitions": int(os.environ["WORLD_SIZE"]),
            "microbatches": arguments.microbatches,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    step = smp_step(SHAPES[arguments.shape], arguments.microbatches)
    for _ in range(WARM_UP):
        step()
    lines = None
    if smp.rank() == 0:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(arguments.socket)
        lines = connection.makefile("rw")
        print(smdistributed.__file__, file=lines, flush=True)
    count = torch.zeros(1, dtype=torch.int64)
    while True:
        if lines is not None:
            count[0] = int(lines.readline() or 0)
        dist.broadcast(count, 0)
        if not count:
            return
        step()  # the other job had the caches
        begin = time.perf_counter()
        for _ in range(int(count)):
            step()
        if lines is not None:
            print((time.perf_counter() - begin) / int(count), file=lines, flush=True)


if __name__ == "__main__":
    main()
