# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lets a process say its last words on SIGTERM, whatever its main thread is doing.

Python runs handlers of signals on the main thread, between two of its instructions. A rank that
waits for another one inside C++, as torch's `DistributedDataParallel` does, gets there when the
wait is over: too late, as SIGKILL follows. What does run at once is the interpreter's own handler
in C, and it writes the number of the signal to a descriptor if it is given one. So a thread reads:

    SIGTERM ─▶ handler in C ─────────────────────▶ pipe ─▶ thread: last words, then SIGTERM again,
                  └▶ handler in Python, later ─────┘               by its default action

The second way is for programs that need the descriptor for themselves, of which there can be one
per process: asyncio does. The thread does all the work on both, so it is done once.

Source: our choice; docs/tracing.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import types
from collections.abc import Callable
from typing import Final

__all__ = ["TerminationWatch"]

# In the pipe beside the numbers of signals, none of which it is.
_FROM_PYTHON: Final = 0


class _HeldSignals(threading.local):
    """The signal mask of a thread before it began to fork; None if it was left alone."""

    mask: set[int | signal.Signals] | None = None


class TerminationWatch:
    """Calls a function when SIGTERM comes, then lets it end the process.

    The main thread goes on meanwhile; a process that leaves through `sys.exit()` must call `stop`,
    which waits for the end. A script that handles SIGTERM itself is left alone, before and after
    `start`. A forked child is not watched, and ends by SIGTERM as if there were no watch.

    Args:
        last_words: called on a thread of its own, at most once. It may wait for locks that the main
            thread lets go without another signal.

    Thread rule: `start` and `stop` on the main thread.
    """

    def __init__(self, last_words: Callable[[], None]) -> None:
        self._last_words = last_words
        self._thread: threading.Thread | None = None
        self._pipe = (-1, -1)
        self._has_come = False
        self._has_fork_hooks = False
        self._held = _HeldSignals()

    def start(self) -> None:
        """Watch from now on, if SIGTERM would end the process and this is the main thread."""
        if (
            self._thread is not None
            or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return
        if not self._has_fork_hooks:
            self._has_fork_hooks = True
            os.register_at_fork(
                before=self._hold_signal,
                after_in_parent=self._let_signal_go,
                after_in_child=self._forget,
            )
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._thread = threading.Thread(target=self._serve, name="smddp-sigterm", daemon=True)
        self._thread.start()
        others = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
        signal.signal(signal.SIGTERM, self._on_signal)

    def stop(self) -> None:
        """Leave SIGTERM to its default action. If it has come, wait for that: do not return."""
        if self._thread is None:
            return
        self._unhook()  # runs the handler first if Python still owes a call
        if self._has_come:
            self._thread.join()
        self._thread = None

    def _serve(self) -> None:
        while numbers := os.read(self._pipe[0], 64):
            if _FROM_PYTHON in numbers or (signal.SIGTERM in numbers and self._is_hooked()):
                self._has_come = True
                try:
                    self._last_words()
                finally:
                    # signal.signal() is for the main thread only, which may not get there.
                    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # None: SIG_DFL
                    os.kill(os.getpid(), signal.SIGTERM)

    def _on_signal(self, number: int, _: types.FrameType | None) -> None:
        if self._thread is None:
            # Called by a script's handler, which found this one: after stop(), or in a child.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._has_come = True
        # Not said here: this may have interrupted code that holds a lock which the words need.
        with contextlib.suppress(BlockingIOError):  # full: then the thread has enough to read
            os.write(self._pipe[1], bytes([_FROM_PYTHON]))

    def _is_hooked(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._on_signal

    def _unhook(self) -> None:
        if self._is_hooked():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(descriptor)

    # A child has the parent's pipe: until `_forget`, a SIGTERM sent to the child would end the
    # parent. So it is held back meanwhile.

    def _hold_signal(self) -> None:
        if self._thread is not None:
            self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_signal_go(self) -> None:
        mask, self._held.mask = self._held.mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _forget(self) -> None:
        if self._thread is not None:
            self._unhook()
            self._thread = None
            self._has_come = False
            for descriptor in self._pipe:
                os.close(descriptor)
        self._let_signal_go()
