# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of which one runs at a time, and who runs next.

A fiber is a thread with a baton: user code is suspended in the middle of a forward or of a backward
pass, below frames of C++, so each suspended piece needs a stack of its own. Threads of which all
but one wait are such stacks; the one that has the baton owns everything here, and there are no
locks.

There is no scheduling thread. Who suspends looks for the next thing to do on its own stack: if that
is its own answer, nothing is switched. New work runs on an idle stack (the main thread's if it is
one, so a rank that only serves never switches), and what is resumed is handed the baton.

What comes first is asked of the schedule; among equals, what became ready first.
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from smdistributed.collectives._native import Baton
from smdistributed.modelparallel.decide.schedules.schedule import Priority, Task
from smdistributed.modelparallel.torch.pipeline.loop.recorder import Recorder

__all__ = ["Aborted", "Fiber", "Outside", "Scheduler"]


class Fiber:
    """A stack. `activity` is what is worked on there; the scheduler does not look at it."""

    __slots__ = (
        "_baton",
        "_is_given",
        "activity",
        "ends",
        "is_away",
        "is_suspended",
        "job",
        "thread",
        "thrown",
    )

    def __init__(self) -> None:
        self._baton = Baton()
        self._is_given = False
        self.job: Callable[[], None] | None = None
        self.thrown: BaseException | None = None
        self.is_suspended = False
        self.is_away = False  # its job has begun, and another fiber may have its turn
        self.thread = 0  # its identity
        self.ends: Callable[[float], None] = lambda _: None  # waits for the thread to end
        self.activity: Any = None

    def give(self) -> None:
        """Lets the fiber run. The caller has nothing more to do."""
        self._is_given = True
        self._baton.give()

    def give_way_to(self, other: Fiber, interrupted: Callable[[BaseException], None]) -> None:
        """Lets another fiber run, and waits until somebody lets this one.

        Args:
            other: that runs now.
            interrupted: as of `take`.
        """
        is_said = False
        try:
            other._is_given = is_said = True
            self._baton.pass_to(other._baton)
        except BaseException as error:
            if not is_said:
                other._is_given = True
            other._baton.give()  # once too often, perhaps: see take()
            interrupted(error)
        self.take(interrupted)

    def has_ended(self) -> None:
        """Its job is over, and has left nothing here."""
        self.activity = self.thrown = self.job = None
        self.is_away = self.is_suspended = self._is_given = False

    def keep(self) -> None:
        """It runs, whatever has interrupted `give_way_to`."""
        self._is_given = False

    def take_job(self) -> Callable[[], None] | None:
        """What it was given to do, which is not kept here: tensors hang on it."""
        job, self.job = self.job, None
        return job

    def take(self, interrupted: Callable[[BaseException], None]) -> None:
        """Waits until somebody gives.

        Args:
            interrupted: called with what a signal's handler raises (Ctrl-C: KeyboardInterrupt),
                which reaches the main thread whoever runs: it must make the one that runs stop
                soon.
        """
        while not self._is_given:  # a signal may leave a baton that counts for nothing
            try:
                self._baton.take()
            except BaseException as error:
                interrupted(error)
        self._is_given = False


class Outside(Protocol):
    """Where things to do come from, and what belongs to a stack but not to a thread."""

    def priority(self, task: Task) -> Priority:
        """What comes first: the smallest."""

    def offer(self) -> Task | None:
        """The microbatch that may start here without a message, if one may."""

    def accept(self, offered: Task) -> Callable[[], None]:
        """What starts it."""

    def poll(self) -> None:
        """Deals with the messages that have come."""

    def wait(self, awaited: Callable[[], str]) -> None:
        """Waits for a message, and deals with it.

        Args:
            awaited: what all that is suspended waits for, in words; empty if nothing is.
        """

    def leave(self) -> Any:
        """What to put back when the running activity runs again."""

    def enter(self, activity: Any, left: Any) -> None:
        """Puts it back."""

    def interrupted(self, error: BaseException) -> None:
        """A signal's handler has raised this: `poll()` and `wait()` must raise soon, anywhere."""


class _Ready(NamedTuple):
    """Something to do. Sorted by the first two; the second is unique."""

    priority: Priority
    arrival: int
    fiber: Fiber | None  # to resume; None: new work
    run: Callable[[], None] | None


_FIRST = (-1, -1)
# How long `close` waits for threads that have nothing to do but to end.
_JOIN_S = 5.0


class Aborted(BaseException):
    """Ends suspended user code when the step has failed; no `except Exception` keeps it."""


class _Exit(BaseException):
    """Ends a pooled thread."""


class Scheduler:
    """Runs jobs on fibers, one at a time, the most urgent first.

    `run()` is called by the thread that owns the step, over and over; everything else is called by
    whichever fiber runs. An exception of `outside`, or of a job, is fatal to that `run()`: every
    suspended fiber ends with `Aborted`, and then `run()` raises.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._ready: list[_Ready] = []
        self._arrivals = itertools.count()
        self._idle: list[Fiber] = []
        self._suspended: dict[Fiber, None] = {}  # in the order of their suspension
        self.recorder: Recorder | None = None
        self._main = Fiber()
        self._is_main_idle = False
        self._until: Callable[[], bool] = lambda: True
        self._fatal: BaseException | None = None
        self._interruption: BaseException | None = None
        self._is_aborting = False
        self._begun: set[Fiber] = set()  # whose jobs have begun, and have not ended
        self._turns = 0
        self._context = contextvars.Context()
        self.current = self._main

    # --- called by whoever owns the step ---------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Works until that holds and nothing is under way.

        Raises:
            BaseException: what was fatal, after everything under way has ended.
        """
        self._until = until
        self._fatal = None
        self._context = contextvars.copy_context()
        main = self._main
        main.thread = threading.get_ident()
        self.current = main
        try:
            self._run_to_end()
        finally:
            self._ready.clear()
            self._is_aborting = False  # what is submitted from now on is of the next run
            self.current = main
        fatal, self._fatal = self._fatal, None
        interruption, self._interruption = self._interruption, None
        try:
            if interruption is not None:
                raise interruption from fatal
            if fatal is not None:
                raise fatal
        finally:
            del fatal, interruption  # this frame is in their tracebacks

    def close(self) -> None:
        """Ends the pooled threads. Nothing may be under way.

        A thread that comes back from `Baton.take()` while the interpreter exits ends the process
        with SIGABRT (see `dataparallel.torch.background`). So this waits for them.
        """
        fibers, self._idle = self._idle, []
        for fiber in fibers:
            fiber.job = _raise_exit
            fiber.give()
        until = time.monotonic() + _JOIN_S
        for fiber in fibers:
            fiber.ends(max(0.0, until - time.monotonic()))

    def _run_to_end(self) -> None:
        try:
            while not self._is_over():
                self._take_turn_on_main()
        except BaseException as error:  # of a signal's handler, in the middle of this
            self._main.has_ended()
            self._is_main_idle = False
            self._begun.discard(self._main)
            self.current = self._main
            self._fail(error)
            self._run_to_end()

    def _take_turn_on_main(self) -> None:
        """Work on the main fiber, which has nothing under way; or it lets another one work."""
        main = self._main
        ready = self._next()
        if ready is None:
            return
        if ready.fiber is None:
            run = ready.run
            del ready  # while this stack waits it must not keep what it has worked on
            self._work(main, run)
            return
        self._is_main_idle = True
        try:
            self._hand_over(main, ready)
        finally:
            self._is_main_idle = False
        if main.job is not None:
            self._work(main, main.take_job())

    # --- called by the running fiber -------------------------------------------------------------

    def submit(self, task: Task, run: Callable[[], None]) -> None:
        """Has `run` done, on a fiber of its own, when it is the most urgent."""
        self._push(_Ready(self._outside.priority(task), next(self._arrivals), None, run))

    def resume(self, fiber: Fiber, task: Task) -> None:
        """What a suspended fiber waits for is there."""
        if fiber.is_suspended:
            # In this order: a signal's handler may raise anywhere, and no fiber must be lost.
            self._push(_Ready(self._outside.priority(task), next(self._arrivals), fiber, None))
            fiber.is_suspended = False
            self._suspended.pop(fiber, None)

    def throw(self, fiber: Fiber, task: Task, error: BaseException) -> bool:
        """A suspended fiber goes on with an exception. Returns: whether it was suspended."""
        if not fiber.is_suspended:
            return False
        fiber.thrown = error
        self.resume(fiber, task)
        return True

    def suspend(self) -> None:
        """Leaves the running fiber until it is resumed; others work meanwhile."""
        me = self.current
        if self._is_aborting:
            raise Aborted
        me.is_suspended = True
        self._suspended[me] = None
        self._give_way(me)

    def yield_to_more_urgent(self, task: Task) -> None:
        """Goes on when `task` is the most urgent thing to do here."""
        me = self.current
        if self._is_aborting:
            raise Aborted
        self._push(_Ready(self._outside.priority(task), next(self._arrivals), me, None))
        self._give_way(me)

    def abort(self) -> None:
        """Ends everything under way; nothing new begins until the next `run()`."""
        if self._is_aborting:
            return
        self._is_aborting = True
        away = {fiber for fiber in self._begun if fiber.is_away or fiber is not self.current}
        self._ready = [ready for ready in self._ready if ready.fiber in away]
        heapq.heapify(self._ready)
        resumed = {ready.fiber for ready in self._ready}
        for fiber in away:
            fiber.is_suspended = False
            if fiber.thrown is None:
                fiber.thrown = Aborted()
            if fiber not in resumed:
                self._push(_Ready(_FIRST, next(self._arrivals), fiber, None))
        self._suspended.clear()

    def waiting(self) -> list[Any]:
        """The activities of the fibers that wait for something."""
        return [fiber.activity for fiber in self._suspended]

    def awaited(self) -> str:
        """What they wait for, in words; empty if none does."""
        return "; ".join(map(str, self.waiting()))

    # --- inside ----------------------------------------------------------------------------------

    def _push(self, ready: _Ready) -> None:
        if ready.fiber is None and self._is_aborting:
            return
        heapq.heappush(self._ready, ready)

    def _is_over(self) -> bool:
        return not self._begun and (self._fatal is not None or self._until())

    def _next(self) -> _Ready | None:
        """The most urgent thing to do. None: the step is over, and the caller is the main fiber."""
        while True:
            try:
                if self._fatal is None:
                    self._outside.poll()
                offered = None if self._is_aborting else self._outside.offer()
                if offered is not None:
                    priority = self._outside.priority(offered)
                    if not self._ready or priority < self._ready[0].priority:
                        run = self._outside.accept(offered)
                        return _Ready(priority, next(self._arrivals), None, run)
                if self._ready:
                    return heapq.heappop(self._ready)
                if self._is_over():
                    main = self._main
                    return None if self.current is main else _Ready(_FIRST, -1, main, None)
                self._outside.wait(self.awaited)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error
        self.abort()

    def _give_way(self, me: Fiber) -> None:
        if self.recorder is not None:
            self.recorder.pause()
        try:
            left = self._outside.leave()
            me.is_away = True
            self._hand_over(me, self._next())
        except BaseException:  # of a signal's handler, or there was no thread: it goes on at once
            me.is_suspended = False
            me.thrown = None  # this one is raised instead
            self._suspended.pop(me, None)
            self._ready = [each for each in self._ready if each.fiber is not me]
            heapq.heapify(self._ready)
            raise
        finally:
            me.is_away = False
        self._outside.enter(me.activity, left)
        if self.recorder is not None:
            self.recorder.resume(me.activity)
        if me.thrown is not None:
            thrown, me.thrown = me.thrown, None
            try:
                raise thrown
            finally:
                del thrown  # this frame is in its traceback

    def _hand_over(self, me: Fiber, ready: _Ready | None) -> None:
        """Lets another fiber do that, and waits for the next turn of `me`.

        Raises:
            BaseException: of a signal's handler; or there was no thread. If no other fiber has had
                its turn meanwhile, what was to be done still is.
        """
        assert ready is not None  # what is in the middle of something keeps the step from ending
        fiber = ready.fiber
        if fiber is me:
            return
        turns = self._turns
        try:
            if fiber is None:
                fiber = self._fiber_for(ready)
                ready = ready._replace(run=None)  # or this stack would keep what that one works on
            self._switch(me, fiber)
        except BaseException:
            me.keep()
            if self._turns == turns:
                if fiber is not None and ready.fiber is None:
                    ready = ready._replace(run=fiber.take_job() or ready.run)
                    self._dismiss(fiber)
                heapq.heappush(self._ready, ready)
            raise

    def _dismiss(self, fiber: Fiber) -> None:
        """A fiber that was to do something, and has not begun, has nothing to do again."""
        if fiber is self._main:
            self._is_main_idle = True
        else:
            self._idle.append(fiber)

    def _fiber_for(self, ready: _Ready) -> Fiber:
        """A fiber that has nothing to do, and now this."""
        if self._is_main_idle:
            fiber, self._is_main_idle = self._main, False
        elif self._idle:
            fiber = self._idle.pop()
        else:
            fiber = self._hire()
        fiber.job = ready.run
        return fiber

    def _switch(self, me: Fiber, other: Fiber) -> None:
        """Gives the baton away, and waits to be given it back."""
        me.give_way_to(other, self._interrupt)
        self._turns += 1
        self.current = me

    def _work(self, me: Fiber, run: Callable[[], None] | None) -> None:
        assert run is not None
        try:
            self._turns += 1
            self.current = me
            me.thrown = None  # of what has ended
            self._begun.add(me)
            self._context.copy().run(run)
        except _Exit:
            raise
        except BaseException as error:  # jobs deal with theirs: this one is a defect, or Ctrl-C
            if not isinstance(error, Aborted) or not self._is_aborting:
                self._fail(error)
        finally:
            if self.recorder is not None:
                self.recorder.pause()
            self._begun.discard(me)
            me.activity = None

    def _interrupt(self, error: BaseException) -> None:
        if self._interruption is None:
            self._interruption = error
        self._outside.interrupted(error)

    def _hire(self) -> Fiber:
        fiber = Fiber()
        thread = threading.Thread(target=self._pooled, args=(fiber,), name="smp-fiber", daemon=True)
        thread.start()
        fiber.ends = thread.join
        return fiber

    def _pooled(self, me: Fiber) -> None:
        me.thread = threading.get_ident()
        me.take(self._interrupt)
        while True:
            try:
                self._work(me, me.take_job())
            except _Exit:
                return
            while (ready := self._next()) is not None and ready.fiber is None:
                run = ready.run
                del ready
                self._work(me, run)
                del run
            assert ready is not None  # None is for the main fiber
            fiber = ready.fiber
            assert fiber is not None
            del ready
            self._idle.append(me)
            self._switch(me, fiber)


def _raise_exit() -> None:
    raise _Exit
