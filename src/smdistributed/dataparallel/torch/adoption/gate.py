# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lets a storage move only while no other call of ours is under way, in any group or thread.

A call notes the address of a tensor before it hands the operation to the engine. Between the two
nobody else can see that the address is held, so a check followed by a move would be too late. Hence
every call enters this gate before it notes an address and leaves it when the engine has the
operation. A call that wants to move must find itself alone inside; calls that come meanwhile wait
at the gate until the move is done. Operations that the engine has under way are asked of the
engine, which then cannot get new ones.

Only `SMDDP_ZERO_COPY=recurring` needs it: nothing else moves.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["Gate", "gate"]


class Gate:
    """Calls are inside together; a move is alone. Any thread; a call may enter more than once."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget everybody. In a forked child: the threads that were inside do not exist there."""
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._is_moving = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """For the time in which a call holds addresses that the engine does not know yet.

        Waits while a storage moves.
        """
        changed = self._changed
        with changed:
            while self._is_moving:
                changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with changed:
                self._inside -= 1

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """For a call that is inside: whether it is the only one, and stays it until the end.

        Never waits.
        """
        changed = self._changed
        with changed:
            is_alone = self._inside == 1 and not self._is_moving
            self._is_moving = self._is_moving or is_alone
        try:
            yield is_alone
        finally:
            if is_alone:
                with changed:
                    self._is_moving = False
                    changed.notify_all()


gate = Gate()
"""Of this process."""

os.register_at_fork(after_in_child=gate.renew)
