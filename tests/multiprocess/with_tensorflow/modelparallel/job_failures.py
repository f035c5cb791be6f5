# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_job_failures.py run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPPeerLost, SMDDPTimeoutError
from tests.multiprocess.with_tensorflow.tf_ranks import raised


def a_rank_dies(rank: int, size: int) -> tuple[str, float]:
    """The others wait for it, in two ways."""
    smp.init({"partitions": size})
    if rank == 2:
        smp.recv_from(0, smp.WORLD_RANK)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        smp.send("now", 2, smp.WORLD_RANK)
    began = time.monotonic()
    if rank == 0:
        text = raised(SMDDPPeerLost, smp.recv_from, 2, smp.WORLD_RANK)
    else:
        text = raised(SMDDPPeerLost, smp.allgather, 1, smp.WORLD)
    return text, time.monotonic() - began


def nobody_sends(rank: int, size: int, given_up: Path) -> str:
    smp.init({"partitions": size})
    text = ""
    if rank == 0:
        text = raised(SMDDPTimeoutError, smp.recv_from, 1, smp.WORLD_RANK)
        given_up.touch()
    while not given_up.exists():  # who leaves earlier looks lost
        time.sleep(0.01)
    return text
