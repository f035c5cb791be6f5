# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of `two_versions.py`: takes our steps when it is told how many.

Whichever library `PYTHONPATH` finds is measured; model and step are this checkout's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import torch
import torch.distributed as dist
from common.on_request import answer_requests
from models import SHAPES
from rank import WARM_UP, smp_step

import smdistributed
import smdistributed.modelparallel.torch as smp


def main() -> None:
    """Rank 0 answers with seconds of one step."""
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

    def measure(count: int) -> float:
        step()  # the other job had the caches
        begin = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - begin) / count

    answer_requests(
        arguments.socket, smp.rank() == 0, _tell, {"step": measure}, smdistributed.__file__
    )


def _tell(request: list[int]) -> list[int]:
    told = torch.tensor(request)
    dist.broadcast(told, 0)
    return [int(each) for each in told]


if __name__ == "__main__":
    main()
