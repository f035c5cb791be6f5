# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that stop a job when its process gets them, also in the first moments of that."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["held_back", "note_from_now_on"]

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A process that is started in this block gets them once it calls `note_from_now_on`.

    Without that a stop in its first moments would end it before it can say what it was.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def note_from_now_on(note: Callable[[int, FrameType | None], None]) -> None:
    """Has them noted, those also that were held back.

    Args:
        note: a handler.
    """
    for number in _ENDING:
        signal.signal(number, note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
