# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The threads on which futures complete: one is always ready, and none is started in vain."""

from __future__ import annotations

import os
import threading

import pytest
from machine_speed import scaled

from smdistributed.dataparallel.torch.completion import CompletionThreads

DEADLINE_S = scaled(60.0)


def test_jobs_that_wait_for_nothing_share_one_thread() -> None:
    threads = CompletionThreads()
    names: list[int] = []
    for _ in range(20):
        threads.run_soon(lambda: names.append(threading.get_ident()))
        assert threads.join(DEADLINE_S)
    assert len(names) == 20
    assert len(set(names)) == 1
    assert threading.get_ident() not in names


def test_a_job_may_wait_for_a_later_one() -> None:
    threads = CompletionThreads()
    later, waited = threading.Event(), threading.Event()

    def job() -> None:
        threads.run_soon(later.set)
        if later.wait(DEADLINE_S):
            waited.set()

    threads.run_soon(job)
    assert waited.wait(DEADLINE_S)


def test_join_tells_whether_a_job_is_under_way() -> None:
    threads = CompletionThreads()
    gate = threading.Event()
    assert threads.join(0.0), "nothing was to be done"
    threads.run_soon(gate.wait)
    threads.run_soon(lambda: None)
    threads.stop()
    assert not threads.join(0.01)
    gate.set()
    assert threads.join(DEADLINE_S)
    threads.run_soon(gate.clear)  # stop() ends nothing
    assert threads.join(DEADLINE_S)
    assert not gate.is_set()


def test_a_job_that_raises_costs_its_thread_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    threads = CompletionThreads()
    done = threading.Event()

    def job() -> None:
        raise ArithmeticError

    for _ in range(3):
        threads.run_soon(job)
    threads.run_soon(done.set)
    assert done.wait(DEADLINE_S)
    assert threads.join(DEADLINE_S)
    assert raised == [ArithmeticError] * 3


def test_where_no_thread_can_be_had_the_job_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in exit handlers from Python 3.12 on."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threads = CompletionThreads()
    idents: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for _ in range(2):
            threads.run_soon(lambda: idents.append(threading.get_ident()))
    assert idents == [threading.get_ident()] * 2
    threads.run_soon(lambda: idents.append(threading.get_ident()))
    assert threads.join(DEADLINE_S)
    assert idents[2] != threading.get_ident()


def test_a_forked_child_has_threads_of_its_own_and_leaves_the_parents_jobs_alone() -> None:
    """The parent's waiting thread once counted as one of the child's, whose jobs never ran."""
    threads = CompletionThreads()
    gate, begun, ended = threading.Event(), threading.Event(), threading.Event()
    threads.run_soon(lambda: (begun.set(), gate.wait(), ended.set()))
    assert begun.wait(DEADLINE_S)
    child = os.fork()
    if child == 0:
        done = threading.Event()
        is_idle = threads.join(DEADLINE_S)
        threads.run_soon(done.set)
        os._exit(0 if is_idle and done.wait(DEADLINE_S) and not ended.is_set() else 1)
    _, status = os.waitpid(child, 0)
    gate.set()
    assert os.waitstatus_to_exitcode(status) == 0
    assert ended.wait(DEADLINE_S), "the parent goes on"
