# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a process, and its fork, while futures of collectives have something left to do.

Source: dataparallel specification, section 4.5.
"""

from __future__ import annotations

import os
import traceback

import pytest
import torch
import torch.distributed as dist
from harness import free_port, run_ranks, run_script
from torch_ranks import smddp

DEADLINE_S = 120.0

pytestmark = pytest.mark.fresh  # the end of an interpreter is what is tested

_START = """
import sys, threading, time
import torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp

dist.init_process_group("smddp")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
begun = threading.Event()

def slowly(text):
    for _ in range(30):
        time.sleep(0.01)
    print(text, flush=True)
"""

# Rank 0 chains a callback before the operation is complete, and ends while the callback runs.
_LEAVE_IT_RUNNING = """
if rank == 0:
    chained = dist.all_reduce(torch.ones(9), async_op=True).get_future().then(callback)
    store.set("chained", "")
    begun.wait()
    sys.exit(3)
store.wait(["chained"])
dist.all_reduce(torch.ones(9))
"""

_RUNNING = """
def callback(future):
    begun.set()
    slowly(f"sum {future.value()[0][0].item():g}")
"""


def test_exit_waits_for_a_callback_under_way_and_keeps_the_status() -> None:
    """Once it did not wait, and the process ended with SIGABRT.

    The callback's thread came back from `sleep` while the interpreter was going away, which ended
    the thread in the middle of C++ code.
    """
    script = _START + _RUNNING + _LEAVE_IT_RUNNING
    first, second = run_script(["-c", script], 2, check=False, deadline_s=DEADLINE_S)
    assert (first.exit_code, first.output) == (3, "sum 2\n")
    assert second.exit_code == 0, second.output


_PENDING = """
def callback(future):
    try:
        future.value()
    except RuntimeError as error:
        slowly(f"told: {error}")

if rank == 0:  # rank 1 never comes to the all_reduce
    chained = dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(callback)
    sys.exit(3)
try:
    dist.recv(torch.empty(1), src=0)  # rank 0 leaves instead
except Exception:
    sys.exit(4)
"""


def test_exit_tells_the_callback_of_a_pending_operation_and_keeps_the_status() -> None:
    first, second = run_script(["-c", _START + _PENDING], 2, check=False, deadline_s=DEADLINE_S)
    assert (first.exit_code, second.exit_code) == (3, 4), (first.output, second.output)
    assert first.output.startswith("told: "), first.output


_HANGING = """
from smdistributed.dataparallel.torch import background

background._JOIN_S = 0.1

def callback(future):
    begun.set()
    threading.Event().wait()
"""


def test_exit_gives_up_on_a_callback_that_hangs_names_its_thread_and_keeps_the_status() -> None:
    script = _START + _HANGING + _LEAVE_IT_RUNNING
    first, second = run_script(["-c", script], 2, check=False, deadline_s=DEADLINE_S)
    assert first.exit_code == 3, first.output
    assert "still a job on: smddp-futures" in first.output
    assert second.exit_code == 0, second.output


def _sum_through_a_future() -> float:
    with smddp():
        future = dist.all_reduce(torch.ones(100_000), async_op=True).get_future()
        return float(future.wait()[0][0])


def forks_with_threads(rank: int, world_size: int, port: int) -> tuple[float, int]:
    parents = _sum_through_a_future()  # the thread for futures waits for more
    child = os.fork()
    if child == 0:
        try:
            os.environ["MASTER_PORT"] = str(port)
            is_right = _sum_through_a_future() == world_size
        except BaseException:
            traceback.print_exc()
            os._exit(2)
        os._exit(0 if is_right else 1)
    _, status = os.waitpid(child, 0)
    return parents, os.waitstatus_to_exitcode(status)


def test_futures_complete_in_a_group_that_forked_children_make() -> None:
    """The parent's thread once counted as the child's, whose futures then never completed."""
    outcomes = run_ranks(forks_with_threads, 2, free_port(), deadline_s=DEADLINE_S)
    assert outcomes == [(2.0, 0)] * 2
