# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that works jobs in order."""

from __future__ import annotations

import os
import threading

from machine_speed import scaled

from smdistributed.dataparallel.torch.cuda.lane import Lane

DEADLINE_S = scaled(60.0)


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def _close(lane: Lane) -> None:
    lane.stop()
    assert lane.join(DEADLINE_S)


def test_jobs_run_in_order_on_one_thread_that_starts_with_the_first() -> None:
    lane = Lane("lane-in-order")
    assert not _threads("lane-in-order")
    done: list[tuple[int, str]] = []
    for i in range(100):
        assert lane.submit(lambda i=i: done.append((i, threading.current_thread().name)))
    lane.drain()
    assert done == [(i, "lane-in-order") for i in range(100)]
    _close(lane)
    assert not _threads("lane-in-order")


def test_stop_works_what_is_queued_then_ends_and_takes_no_more() -> None:
    gate = threading.Event()
    done: list[str] = []
    lane = Lane("lane-closing", at_end=lambda: done.append("end"))
    lane.submit(gate.wait)
    lane.submit(lambda: done.append("job"))
    lane.stop()
    assert not lane.submit(lambda: done.append("too late"))
    assert not lane.join(0.01), "a job hangs"
    gate.set()
    assert lane.join(DEADLINE_S)
    assert done == ["job", "end"]
    _close(lane)  # twice does no harm


def test_a_lane_without_jobs_starts_no_thread_and_has_no_end() -> None:
    ends: list[str] = []
    lane = Lane("lane-unused", at_end=lambda: ends.append("end"))
    lane.drain()
    _close(lane)
    assert not ends


def test_a_job_may_close_its_own_lane() -> None:
    lane = Lane("lane-suicidal")
    joined: list[bool] = []

    def close() -> None:
        lane.stop()
        joined.append(lane.join(DEADLINE_S))

    lane.submit(close)
    lane.drain()
    _close(lane)
    assert joined == [True]
    assert not _threads("lane-suicidal")


def test_in_a_forked_child_nothing_waits_for_the_thread_of_the_parent() -> None:
    """Through `drain` and `join` a child once waited for a job that only its parent was doing."""
    gate, begun = threading.Event(), threading.Event()
    ends: list[str] = []
    lane = Lane("lane-of-the-parent", at_end=lambda: ends.append("end"))
    lane.submit(lambda: (begun.set(), gate.wait()))
    lane.submit(lambda: ends.append("job"))
    assert begun.wait(DEADLINE_S)
    child = os.fork()
    if child == 0:
        lane.drain()
        lane.stop()
        is_quiet = lane.join(DEADLINE_S) and not lane.submit(gate.set) and not ends
        os._exit(0 if is_quiet else 1)
    _, status = os.waitpid(child, 0)
    gate.set()
    _close(lane)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ends == ["job", "end"], "the parent goes on"
