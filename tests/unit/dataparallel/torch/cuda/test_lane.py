# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that works jobs in order."""

from __future__ import annotations

import threading

from smdistributed.dataparallel.torch.cuda.lane import Lane


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_jobs_run_in_order_on_one_thread_that_starts_with_the_first() -> None:
    lane = Lane("lane-in-order")
    assert not _threads("lane-in-order")
    done: list[tuple[int, str]] = []
    for i in range(100):
        assert lane.submit(lambda i=i: done.append((i, threading.current_thread().name)))
    lane.drain()
    assert done == [(i, "lane-in-order") for i in range(100)]
    lane.close()
    assert not _threads("lane-in-order")


def test_close_works_what_is_queued_then_ends_and_takes_no_more() -> None:
    gate = threading.Event()
    done: list[str] = []
    lane = Lane("lane-closing", at_end=lambda: done.append("end"))
    lane.submit(gate.wait)
    lane.submit(lambda: done.append("job"))
    lane.stop()
    assert not lane.submit(lambda: done.append("too late"))
    gate.set()
    lane.close()
    assert done == ["job", "end"]
    lane.close()  # twice does no harm


def test_a_lane_without_jobs_starts_no_thread_and_has_no_end() -> None:
    ends: list[str] = []
    lane = Lane("lane-unused", at_end=lambda: ends.append("end"))
    lane.drain()
    lane.close()
    assert not ends


def test_a_job_may_close_its_own_lane() -> None:
    lane = Lane("lane-suicidal")
    lane.submit(lane.close)
    lane.drain()
    lane.close()
    assert not _threads("lane-suicidal")
