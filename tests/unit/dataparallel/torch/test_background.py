# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The end of all our threads together: who is first, how long it may take, what is said."""

from __future__ import annotations

import gc
import os
import types

import pytest

from smdistributed.dataparallel.torch import background


class Recorder:
    """A worker that notes what is asked of it; a hanging one uses up the time it is given."""

    def __init__(self, name: str, calls: list[str], clock: Clock, *, hangs: bool = False) -> None:
        self.name = name
        self.timeout_s = -1.0
        self._calls = calls
        self._clock = clock
        self._hangs = hangs

    def stop(self) -> None:
        self._calls.append(f"stop {self.name}")

    def join(self, timeout_s: float) -> bool:
        self._calls.append(f"join {self.name}")
        self.timeout_s = timeout_s
        if self._hangs:
            self._clock.now_s += timeout_s
        return not self._hangs

    def forget_threads(self) -> None:
        self._calls.append(f"forget {self.name}")


class Clock:
    """Fields that the fixture gives to the test."""

    now_s = 100.0
    engine_ends = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that only a hanging worker spends, in a process without other workers or engine."""
    clock = Clock()

    def prepare_exit() -> None:
        clock.engine_ends += 1

    monkeypatch.setattr(background, "time", types.SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(background, "_native", types.SimpleNamespace(prepare_exit=prepare_exit))
    monkeypatch.setattr(background, "_workers", type(background._workers)())
    return clock


def test_all_are_stopped_before_any_is_waited_for_and_the_deadline_is_one(clock: Clock) -> None:
    """Groups whose device hangs once cost five seconds each."""
    calls: list[str] = []
    first, second = (Recorder(name, calls, clock, hangs=True) for name in ("a", "b"))
    third = Recorder("c", calls, clock)
    assert background.close(first, second, third) == [first, second]
    assert calls == ["stop a", "stop b", "stop c", "join a", "join b", "join c"]
    assert [worker.timeout_s for worker in (first, second, third)] == [5.0, 0.0, 0.0]


def test_at_exit_the_youngest_worker_ends_first_and_nothing_is_said(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    old, young = (Recorder(name, calls, clock) for name in ("old", "young"))
    background.register(old)
    background.register(young)
    background.leave()
    assert clock.engine_ends == 1, "or what the workers wait for would not end"
    assert calls == ["stop young", "stop old", "join young", "join old"]
    assert caplog.messages == []


def test_at_exit_a_job_that_does_not_end_is_named(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [Recorder(f"worker {i}", [], clock, hangs=i > 0) for i in range(3)]
    for worker in workers:
        background.register(worker)
    background.leave()
    (text,) = caplog.messages
    assert "after 5 s" in text
    assert ": worker 2, worker 1;" in text
    assert "let the script wait" in text


def test_a_worker_that_is_gone_is_not_kept(clock: Clock) -> None:
    calls: list[str] = []
    background.register(Recorder("gone", calls, clock))
    gc.collect()
    background.leave()
    assert calls == []


def test_a_forked_child_forgets_the_threads_and_its_parent_does_not(clock: Clock) -> None:
    calls: list[str] = []
    worker = Recorder("worker", calls, clock)
    background.register(worker)
    child = os.fork()
    if child == 0:
        os._exit(0 if calls == ["forget worker"] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert calls == []
