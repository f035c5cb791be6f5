# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a staged operation, as its handle sees it.

Complete means: everything this rank had to do on the host is done, and the copies back to the
device are queued. Whoever waits makes their current stream wait for those copies, and may then use
the tensors on it, as after NCCL's `wait`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.dataparallel.exceptions import SMDDPTimeoutError
from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.dataparallel.torch.completion import run_soon
from smdistributed.dataparallel.torch.cuda.device import Device, Event
from smdistributed.dataparallel.torch.work import SmddpWork

__all__ = ["Pending", "StagedWork"]


class Pending:
    """Fulfils `EngineWork`, so that torch's view of it is the same class as for CPU tensors.

    Args:
        device: whose streams wait.
        name: of the operation, for messages.
    """

    def __init__(self, device: Device, name: str) -> None:
        self._device = device
        self._name = name
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[Any], None]] = []
        self._ready: Event | None = None
        self._error: BaseException | None = None
        self.source = -1
        self.is_small = False

    def complete(self, ready: Event | None, source: int = -1) -> None:
        """The host's part is done; the tensors are right after `ready`.

        Args:
            ready: None if nothing goes back to the device.
            source: rank that sent, of a receive.
        """
        self._ready = ready
        self.source = source
        self._finish()

    def fail(self, error: BaseException) -> None:
        """It has ended with an error."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until complete, then let the current stream wait; raises the operation's error."""
        if not self._done.wait(timeout_s):
            raise SMDDPTimeoutError(
                f"wait() gave up on {self._name} after {timeout_s:g} s; expected it to be complete"
                " by then. It goes on: wait again, or pass a longer timeout."
            )
        if self._error is not None:
            raise self._error
        if self._ready is not None:
            self._device.wait(self._ready)

    def is_completed(self) -> bool:
        """Whether the tensors may be used at once, on any stream."""
        return self._done.is_set() and (self._ready is None or self._ready.query())

    def exception(self) -> BaseException | None:
        """The error it has ended with, if any."""
        return self._error

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls `callback(self)` once complete: at once, or on the thread that completes it."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)


@keep_from_compiler
class StagedWork(SmddpWork):
    """A handle whose future knows that its tensors are on a device.

    Such a future lets the current stream of whoever waits for it wait for the streams on which its
    value was made: DDP waits for it in C++.
    """

    def __init__(self, pending: Pending, result: Sequence[Tensor], device: Device) -> None:
        super().__init__(pending, result)
        self._pending = pending
        self._device = device

    def _make_future(self) -> torch.futures.Future[list[Tensor]]:
        future: torch.futures.Future[Any] = torch.futures.Future(
            devices=list(self._device.future_devices)
        )
        # The callback runs with streams of the future's own as the current ones; `wait` makes them
        # wait for our copies, and the future notes them as the makers of its value.
        checked = future.then(self._value_or_raise)
        self._pending.add_done_callback(lambda _: run_soon(lambda: future.set_result(None)))
        return checked
