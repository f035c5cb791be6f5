# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while TensorFlow waits for a collective.

Python handles signals on its main thread, between two of its instructions. In a collective that
thread waits inside TensorFlow, and would learn of a Ctrl-C only when the other ranks have come or
the timeout has passed. So a thread of ours listens for it: where the main thread stays where it is,
all groups are aborted. That ends the operation, TensorFlow returns, and Python raises
`KeyboardInterrupt`, within a second or so. TensorFlow is just making its own error then, and turns
it into a `RuntimeError` that says so. The other ranks hear that this one was interrupted.

What else has something under way, on a thread that Python does not interrupt, ends that and no
group (`also_end`).

Only for a Ctrl-C that would raise `KeyboardInterrupt`: scripts that handle it in another way go on.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping

from smdistributed.collectives import Communicator

__all__ = ["also_end", "watch"]

# What the main thread gets to handle the signal by itself, as it does outside of TensorFlow.
_PATIENCE_S = 0.5
_LOOK_S = 0.05

# Whose ranks may be waited for.
_groups: Mapping[int, Communicator] = {}
# What ends other things that are under way, and returns whether there were any.
_enders: list[weakref.WeakMethod[Callable[[str], bool]]] = []
# Python writes the number of each signal here; None: nobody listens. Once there, it stays: Python
# lets go of it on its main thread only, and whatever got its number would be written to.
_wakeup: socket.socket | None = None


def watch(groups: Mapping[int, Communicator]) -> None:
    """Begins to listen, for the groups that this mapping holds when a signal comes.

    Not where something else does, such as an event loop.
    """
    global _groups
    _groups = groups
    _begin_to_listen()


def also_end(end: Callable[[str], bool]) -> None:
    """From now on a Ctrl-C also calls this method, as long as its object lives.

    Args:
        end: gets the reason, must not wait, and returns whether it has ended anything; if so, the
            groups stay as they are. It is called on a thread of this module.
    """
    _enders[:] = [each for each in _enders if each() is not None]
    _enders.append(weakref.WeakMethod(end))
    _begin_to_listen()


def _begin_to_listen() -> None:
    global _wakeup
    if _wakeup is not None or threading.current_thread() is not threading.main_thread():
        return  # Python allows it to no other thread
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        reading.close()
        writing.close()
        return
    _wakeup = writing
    threading.Thread(target=_listen, args=(reading,), name="smddp-interrupts", daemon=True).start()


def _listen(reading: socket.socket) -> None:
    with reading:
        while numbers := reading.recv(64):
            is_ctrl_c = signal.SIGINT in numbers
            if is_ctrl_c and _raises_interrupt() and _is_stuck_in_tensorflow():
                _end("interrupted by its user")


def _end(reason: str) -> None:
    if any(end(reason) for each in _enders if (end := each()) is not None):
        return
    for group in list(_groups.values()):
        group.native.abort(reason)


def _raises_interrupt() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _is_stuck_in_tensorflow() -> bool:
    """Whether the main thread has not moved for a while, and is in a call of TensorFlow's."""
    place = _place()
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        time.sleep(_LOOK_S)
        if _place() != place:
            return False
    if place is None:
        return False
    _, _, code = place
    # TensorFlow's modules, and the wrappers that it generates for operations of ours.
    return f"{os.sep}tensorflow{os.sep}" in code.co_filename or code.co_name.startswith("smddp_")


def _place() -> tuple[int, int, types.CodeType] | None:
    identifier = threading.main_thread().ident
    frame = None if identifier is None else sys._current_frames().get(identifier)
    return None if frame is None else (id(frame), frame.f_lasti, frame.f_code)


def _forget_in_child() -> None:
    """A forked child must not write into what its parent listens to."""
    global _groups, _wakeup
    _groups = {}
    _enders.clear()
    if _wakeup is None:
        return
    with contextlib.suppress(ValueError):
        ours = _wakeup.fileno()
        found = signal.set_wakeup_fd(-1)
        if found != ours:
            signal.set_wakeup_fd(found)
        _wakeup.close()
    _wakeup = None


os.register_at_fork(after_in_child=_forget_in_child)
