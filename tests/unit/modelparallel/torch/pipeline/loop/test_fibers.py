# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Fibers: who runs next, and what ends them."""

import contextlib
import functools
import gc
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.torch.pipeline.loop.fibers import Aborted, Fiber, Scheduler

FORWARD = [Task(Phase.FORWARD, number) for number in range(8)]
BACKWARD = [Task(Phase.BACKWARD, number) for number in range(8)]


class World:
    """What a scheduler is told: messages are functions, run when they are dealt with."""

    def __init__(self, offered: int = 0) -> None:
        self.scheduler = Scheduler(self)
        self.log: list[str] = []
        self.messages: deque[Callable[[], None]] = deque()
        self.late: deque[Callable[[], None]] = deque()  # come when somebody waits
        self.offered = deque(range(offered))
        self.body: Callable[[int], None] = lambda number: None
        self.state = 0
        self.waited_by: list[int] = []
        self.schedule = Interleaved(8, 8)

    def priority(self, task: Task) -> tuple[int, int]:
        return self.schedule.priority(task, is_leader=True)

    def offer(self) -> Task | None:
        return FORWARD[self.offered[0]] if self.offered else None

    def accept(self, offered: Task) -> Callable[[], None]:
        number = self.offered.popleft()
        return lambda: self.body(number)

    def poll(self) -> None:
        while self.messages:
            self.messages.popleft()()

    def wait(self, awaited: Callable[[], str]) -> None:
        self.waited_by.append(threading.get_ident())
        if not self.late:
            raise RuntimeError("nothing will ever come")
        self.late.popleft()()

    def leave(self) -> int:
        return self.state

    def enter(self, activity: Any, left: int) -> None:
        self.state = left

    def interrupted(self, error: BaseException) -> None:
        self.messages.append(_raise_interrupted)


def _raise_interrupted() -> None:
    raise RuntimeError("interrupted")


def _waits(world: World, name: str, task: Task, inbox: dict[str, Fiber]) -> Callable[[], None]:
    def run() -> None:
        world.log.append(f"{name} begins")
        inbox[name] = world.scheduler.current
        world.scheduler.suspend()
        world.log.append(f"{name} ends")

    return run


def test_jobs_run_by_urgency_then_by_arrival() -> None:
    world = World()
    done: list[str] = []
    for name, task in (
        ("F1", FORWARD[1]),
        ("F0", FORWARD[0]),
        ("B3", BACKWARD[3]),
        ("F0b", FORWARD[0]),
    ):
        world.scheduler.submit(task, lambda name=name: done.append(name))  # type: ignore[misc]
    world.scheduler.run(lambda: len(done) == 4)
    assert done == ["B3", "F0", "F0b", "F1"]


def test_jobs_that_do_not_wait_stay_on_the_thread_that_runs() -> None:
    world = World()
    threads: list[int] = []
    for _ in range(3):
        world.scheduler.submit(FORWARD[0], lambda: threads.append(threading.get_ident()))
    world.scheduler.run(lambda: len(threads) == 3)
    assert set(threads) == {threading.get_ident()}


def test_others_work_while_one_waits_and_it_goes_on_with_its_own_state() -> None:
    world, inbox = World(), {}
    scheduler = world.scheduler

    def first() -> None:
        world.state = 7
        _waits(world, "first", FORWARD[0], inbox)()
        world.log.append(f"state {world.state}")

    def second() -> None:
        world.state = 8
        world.log.append("second")
        scheduler.resume(inbox["first"], FORWARD[0])

    scheduler.submit(FORWARD[0], first)
    scheduler.submit(FORWARD[1], second)
    scheduler.run(lambda: len(world.log) == 4)
    assert world.log == ["first begins", "second", "first ends", "state 7"]


def test_a_fiber_whose_own_answer_comes_first_is_not_switched() -> None:
    world, inbox = World(), {}
    seen: list[int] = []

    def job() -> None:
        seen.append(threading.get_ident())
        world.late.append(lambda: world.scheduler.resume(inbox["job"], FORWARD[0]))
        _waits(world, "job", FORWARD[0], inbox)()
        seen.append(threading.get_ident())

    world.scheduler.submit(FORWARD[0], job)
    world.scheduler.run(lambda: len(seen) == 2)
    assert seen == [threading.get_ident()] * 2


@pytest.mark.parametrize("depth", [1, 5, 60])
def test_many_wait_at_once_and_all_come_back(depth: int) -> None:
    world, inbox = World(), {}
    names = [f"job {number}" for number in range(depth)]
    for name in names:
        world.scheduler.submit(FORWARD[0], _waits(world, name, FORWARD[0], inbox))
    for name in reversed(names):
        world.late.append(lambda name=name: world.scheduler.resume(inbox[name], FORWARD[0]))  # type: ignore[misc]
    world.scheduler.run(lambda: len(world.log) == 2 * depth)
    assert [line for line in world.log if "ends" in line] == [f"{n} ends" for n in reversed(names)]
    world.scheduler.close()


def test_an_offer_is_taken_when_nothing_is_more_urgent() -> None:
    world = World(offered=2)
    done: list[str] = []

    def body(number: int) -> None:
        done.append(f"F{number}")
        if number == 0:
            world.scheduler.submit(BACKWARD[0], lambda: done.append("B0"))

    world.body = body
    world.scheduler.run(lambda: len(done) == 3)
    assert done == ["F0", "B0", "F1"]


def test_yielding_lets_the_more_urgent_go_first() -> None:
    world = World()
    done: list[str] = []

    def modest() -> None:
        world.scheduler.submit(BACKWARD[0], lambda: done.append("urgent"))
        world.scheduler.yield_to_more_urgent(BACKWARD[1])
        done.append("modest")

    world.scheduler.submit(FORWARD[0], modest)
    world.scheduler.run(lambda: len(done) == 2)
    assert done == ["urgent", "modest"]


def test_an_error_can_be_thrown_into_who_waits() -> None:
    world, inbox = World(), {}
    caught: list[BaseException] = []

    def job() -> None:
        try:
            _waits(world, "job", FORWARD[0], inbox)()
        except ValueError as error:
            caught.append(error)

    error = ValueError("from elsewhere")
    world.late.append(lambda: world.scheduler.throw(inbox["job"], FORWARD[0], error))
    world.scheduler.submit(FORWARD[0], job)
    world.scheduler.run(lambda: bool(caught))
    assert caught == [error]


def test_an_abort_ends_all_who_wait_and_keeps_new_work_from_beginning() -> None:
    world, inbox = World(), {}
    ended: list[str] = []

    def job(name: str) -> Callable[[], None]:
        def run() -> None:
            try:
                _waits(world, name, FORWARD[0], inbox)()
            except Aborted:
                ended.append(name)
                raise

        return run

    def abort() -> None:
        world.scheduler.abort()
        world.scheduler.submit(FORWARD[0], lambda: ended.append("late"))

    for name in "abc":
        world.scheduler.submit(FORWARD[0], job(name))
    world.late.append(abort)
    world.scheduler.run(lambda: len(ended) == 3)
    assert sorted(ended) == ["a", "b", "c"]
    done: list[Any] = []
    world.scheduler.submit(FORWARD[0], lambda: done.append(1))
    world.scheduler.run(lambda: bool(done))  # and the next run is a new one


def test_what_waiting_raises_is_raised_by_run_after_all_have_ended() -> None:
    world, inbox = World(), {}
    ended: list[bool] = []

    def job() -> None:
        try:
            _waits(world, "job", FORWARD[0], inbox)()
        finally:
            ended.append(True)

    world.scheduler.submit(FORWARD[0], job)
    world.scheduler.submit(FORWARD[1], job)
    with pytest.raises(RuntimeError, match="nothing will ever come"):
        world.scheduler.run(lambda: False)
    assert ended == [True, True]


def test_a_job_that_raises_ends_the_run() -> None:
    world = World()

    def job() -> None:
        raise KeyError("a defect")

    world.scheduler.submit(FORWARD[0], job)
    with pytest.raises(KeyError):
        world.scheduler.run(lambda: False)


def test_closing_ends_the_threads() -> None:
    world, inbox = World(), {}
    before = set(threading.enumerate())  # those of other tests in this process, too
    for name in "abcd":
        world.scheduler.submit(FORWARD[0], _waits(world, name, FORWARD[0], inbox))
    for name in "abcd":
        world.late.append(lambda name=name: world.scheduler.resume(inbox[name], FORWARD[0]))  # type: ignore[misc]
    world.scheduler.run(lambda: len(world.log) == 8)
    ours = set(threading.enumerate()) - before
    assert ours
    assert {thread.name for thread in ours} == {"smp-fiber"}
    world.scheduler.close()  # waits: a thread that comes back at exit would end the process
    assert not [thread for thread in ours if thread.is_alive()]


def test_what_a_handler_raises_while_another_fiber_works_ends_the_run_and_is_raised() -> None:
    world, inbox = World(), {}

    def works() -> None:
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.2)  # on its own thread, while the main thread has been woken by the signal
        world.log.append("has worked alone" if not world.waited_by else "two at once")

    def expire(*_: object) -> None:
        raise TimeoutError("the watchdog of the script")

    world.scheduler.submit(FORWARD[0], _waits(world, "first", FORWARD[0], inbox))
    world.scheduler.submit(FORWARD[1], works)
    before = signal.signal(signal.SIGALRM, expire)
    try:
        with pytest.raises(TimeoutError, match="watchdog"):
            world.scheduler.run(lambda: False)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert world.log == ["first begins", "has worked alone"]
    world.scheduler.submit(FORWARD[0], lambda: world.log.append("and again"))
    world.scheduler.run(lambda: len(world.log) == 3)
    world.scheduler.close()


class _Held:
    """Something that user code has."""


@pytest.mark.parametrize("is_fatal", [False, True])
def test_what_user_code_had_is_gone_with_its_error(is_fatal: bool) -> None:
    """Up to 2.0.0 it lived until the garbage collector found the frames of the traceback."""
    world, inbox = World(), {}
    held: list[weakref.ref[_Held]] = []

    def waits() -> None:
        mine = _Held()
        held.append(weakref.ref(mine))
        _waits(world, "first", FORWARD[0], inbox)()
        del mine

    def raises() -> None:
        mine = _Held()
        held.append(weakref.ref(mine))
        if is_fatal:
            raise RuntimeError("a defect")
        world.scheduler.abort()

    gc.collect()
    gc.disable()
    try:
        world.scheduler.submit(FORWARD[0], waits)
        world.scheduler.submit(FORWARD[1], raises)
        with pytest.raises(RuntimeError) if is_fatal else contextlib.nullcontext():
            world.scheduler.run(lambda: len(held) == 2)
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


def test_a_rank_that_waits_keeps_nothing_of_what_it_has_done() -> None:
    world = World()
    held: list[weakref.ref[_Held]] = []
    seen: list[Any] = []

    def submit() -> None:
        mine = _Held()
        held.append(weakref.ref(mine))
        world.scheduler.submit(FORWARD[0], lambda: seen.append(type(mine)))

    submit()
    world.late.append(lambda: seen.append(held[0]()))
    world.scheduler.run(lambda: len(seen) == 2)
    assert seen == [_Held, None]


class _Interrupted(BaseException):
    """What a signal's handler raises."""


def _raise_at(number: int) -> tuple[Callable[..., Any], list[str]]:
    """A trace function that raises at the n-th line of fibers.py; and where it did."""
    left = number
    where: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        nonlocal left
        if not frame.f_code.co_filename.endswith("fibers.py"):
            return None
        if event == "line" and not where:
            left -= 1
            if left == 0:
                where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                raise _Interrupted
        return trace

    return trace, where


def _three_that_wait(world: World) -> None:
    """Microbatches that suspend twice each, and are resumed by what comes; new work between."""
    inbox: dict[int, Fiber] = {}

    def body(number: int) -> None:
        for turn in range(2):
            inbox[number] = world.scheduler.current
            wake = functools.partial(_resume, world, inbox, number)
            (world.messages if (number + turn) % 2 else world.late).append(wake)
            world.scheduler.suspend()
        world.scheduler.submit(BACKWARD[number], lambda: world.log.append(f"B{number}"))
        world.scheduler.yield_to_more_urgent(BACKWARD[number])
        world.log.append(f"F{number}")

    world.offered = deque(range(3))
    world.body = body


def _resume(world: World, inbox: dict[int, Fiber], number: int) -> None:
    world.scheduler.resume(inbox[number], FORWARD[number])


def _run_traced(world: World, number: int) -> tuple[BaseException | None, list[str], bool]:
    """Returns: what `run()` raised, where the signal came, and whether it ended."""
    raised: list[BaseException] = []
    trace, where = _raise_at(number)

    def run() -> None:
        sys.settrace(trace)
        try:
            world.scheduler.run(lambda: len(world.log) == 6)
        except BaseException as error:
            raised.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10.0)
    return (raised[0] if raised else None), where, not thread.is_alive()


def test_a_handler_that_raises_at_any_line_loses_no_fiber() -> None:
    """The run ends with that error, and the next one is right."""
    places = set()
    for number in itertools.count(1):
        world = World()
        _three_that_wait(world)
        error, where, has_ended = _run_traced(world, number)
        assert has_ended, f"hangs after a signal at {where}"
        if not where:
            break
        places.add(where[0].split(":")[0])
        assert isinstance(error, (_Interrupted, RuntimeError)), (where, error)
        world.messages.clear()
        world.late.clear()
        world.log.clear()
        _three_that_wait(world)
        error, _, has_ended = _run_traced(world, 1 << 60)
        assert has_ended, f"the run after hangs; the signal had come at {where}"
        assert error is None, (where, error)
        assert sorted(world.log) == ["B0", "B1", "B2", "F0", "F1", "F2"], where
        world.scheduler.close()
    assert places >= {"_give_way", "_hand_over", "_switch", "_next", "resume", "suspend", "_push"}


def test_a_thread_that_cannot_be_started_fails_one_run_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    _three_that_wait(world)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            world.scheduler.run(lambda: len(world.log) == 6)
    world.messages.clear()
    world.late.clear()
    world.log.clear()
    _three_that_wait(world)
    world.scheduler.run(lambda: len(world.log) == 6)
    assert sorted(world.log) == ["B0", "B1", "B2", "F0", "F1", "F2"]
    world.scheduler.close()


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
