# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Work handles: torch's view of an operation that the engine has under way.

What callers ask of a handle: `dist.*` and functional collectives
`wait`, DDP takes `get_future` and waits for it in C++. Hence the future, which costs more than a
small collective, exists only if it is asked for.

DDP waits for its futures at the end of backward, in a callback that autograd calls. The future of a
small operation that is asked for inside a backward is therefore completed in a callback that comes
before that one, on the same thread: it waits natively, drives the operation itself, and no other
thread has to be woken, which takes longer than the operation. (A large one may be complete long
before, and a callback of an inner backward, of activation checkpointing, would wait too early.)

Errors keep their class where Python waits. A future cannot carry a Python exception into C++:
`Future.set_exception` completes it *successfully* with an exception object inside, which crashes
DDP. An error therefore becomes a child made by `then`, whose callback raises.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork

from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.dataparallel.torch.completion import run_soon
from smdistributed.dataparallel.trace import recorder

__all__ = ["COMPLETED", "AllOf", "EngineWork", "SmddpWork", "forbid_waiting_in_backward"]

_completing = threading.Lock()


class _Forbidden:
    """Who has a reason against waiting inside of a backward pass; how many."""

    count = 0

    @classmethod
    def let_go(cls) -> None:
        cls.count -= 1


def forbid_waiting_in_backward(owner: object) -> None:
    """While `owner` lives, a backward pass waits for no operation that was begun in it.

    For who may wait there for something else that this rank is to do: so it is with the stages of a
    pipeline that have replicas.
    """
    _Forbidden.count += 1
    weakref.finalize(owner, _Forbidden.let_go)


class EngineWork(Protocol):
    """What we use of the engine's work handle."""

    @property
    def source(self) -> int: ...
    @property
    def is_small(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> None: ...
    def is_completed(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


@keep_from_compiler
class SmddpWork(TorchWork):
    """A handle of an operation under way.

    Args:
        engine_work: the engine's handle. It holds the tensors until the operation is complete.
        result: tensors that hold the result; the value of the future.
        finish: what is left to do on this rank once the engine is done, for example copying a
            contiguous result to where it belongs. Runs once, in the first thread that waits.
    """

    # Defaults of the class, since most handles need none of these and are made in microseconds.
    _finish: Callable[[], None] | None = None
    _finish_lock: threading.Lock | None = None
    # One future for the life of the handle: C++ keeps references into its value (DDP's join).
    _future: torch.futures.Future[list[Tensor]] | None = None
    _ready: torch.futures.Future[Any] | None = None  # completes the future; taken by who does that
    _completes_now = False  # a thread waits in `_complete_now`

    def __init__(
        self,
        engine_work: EngineWork,
        result: Sequence[Tensor],
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._engine_work = engine_work
        self._result = result
        if finish is not None:
            self._finish = finish
            self._finish_lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until complete; raises the operation's own error. The GIL is released meanwhile."""
        opened = None
        if recorder.is_recording and not self._engine_work.is_completed():
            opened = recorder.begin("wait", "wait")
        try:
            seconds = timeout.total_seconds() if timeout is not None else 0.0
            if seconds > 0:
                self._engine_work.wait(seconds)
            else:
                self._engine_work.wait()
            if self._finish_lock is not None:
                self._run_finish()
        finally:
            if opened is not None:
                recorder.end(opened)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._engine_work.is_completed()

    def is_success(self) -> bool:
        return self._engine_work.is_completed() and self._engine_work.exception() is None

    def exception(self) -> BaseException | None:
        return self._engine_work.exception()

    def source_rank(self) -> int:
        return self._engine_work.source

    _source_rank = source_rank

    def result(self) -> list[Tensor]:
        self.wait()
        return list(self._result)

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the result tensors; an error is raised as RuntimeError where C++ waits."""
        if self._future is None:
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> torch.futures.Future[list[Tensor]]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        if self._engine_work.is_completed() and self._engine_work.exception() is None:
            if self._finish_lock is not None:
                self._run_finish()
            future.set_result(list(self._result))
            return future
        self._ready = future
        checked = future.then(self._value_or_raise)
        # The engine calls back in any case, on its progress thread, which must not run what users
        # chain to the future.
        self._engine_work.add_done_callback(self._complete_soon)
        is_in_backward = torch._C._current_graph_task_id() != -1
        if self._engine_work.is_small and is_in_backward and not _Forbidden.count:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._complete_now)
        return checked

    def _complete_soon(self, _: Any) -> None:
        if not self._completes_now:
            run_soon(self._complete)

    def _complete_now(self) -> None:
        """Complete the future on this thread, as soon as the operation is."""
        self._completes_now = True
        try:
            with contextlib.suppress(Exception):  # whoever waits for the future gets it
                self.wait()
        except BaseException:  # Ctrl-C
            self._completes_now = False
            self._engine_work.add_done_callback(self._complete_soon)
            raise
        self._complete()

    def _complete(self) -> None:
        with _completing:
            ready, self._ready = self._ready, None
        if ready is not None:
            ready.set_result(None)

    def _value_or_raise(self, _: torch.futures.Future[Any]) -> list[Tensor]:
        self.wait()  # complete by now: returns at once or raises
        return list(self._result)

    def _run_finish(self) -> None:
        assert self._finish_lock is not None
        with self._finish_lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()


@keep_from_compiler
class _CompletedWork(TorchWork):
    """The handle that every blocking call returns: there is nothing left to wait for.

    One object serves all calls, which saves a microsecond on each.
    """

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def block_current_stream(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> list[Tensor]:
        return []

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result([])
        return future


COMPLETED = _CompletedWork()


class AllOf:
    """Several engine works as one: complete when all are, failed with the first error."""

    source = -1
    is_small = False

    def __init__(self, works: Sequence[EngineWork]) -> None:
        self._works = list(works)

    def wait(self, timeout_s: float | None = None) -> None:
        first_error: BaseException | None = None
        for work in self._works:
            try:
                work.wait(timeout_s)
            except Exception as error:  # wait for the others too: they still use their buffers
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        left = len(self._works)
        lock = threading.Lock()

        def one_done(_: Any) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                callback(self)

        if not self._works:
            callback(self)
        for work in self._works:
            work.add_done_callback(one_done)
