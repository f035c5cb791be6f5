# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What comes from other ranks, sorted by what is under way.

All ranks do the same in the same order, and number it. By the number of a message this rank knows
whether it is of what it does now, of what it has not begun (it waits until then), or of something
that has failed (it is dropped).

Source: our choice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPTimeoutError
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.messages.channel import Channel, Incoming
from smdistributed.modelparallel.messages.waiting import Wait
from smdistributed.modelparallel.tensorflow.run.wire import (
    Header,
    Kind,
    content_of,
    header_of,
    post_object,
)

__all__ = ["EQUALLY_MANY", "Mailbox", "Receive"]

EQUALLY_MANY = (
    "Ranks that run out of batches before others go on without them. Give all ranks equally many:"
    " the same list of files in the same (sorted) order, and drop_remainder=True."
)
"""What to do where ranks may have different numbers of steps."""

# What deals with a message of what is under way, or refuses it.
Receive = Callable[[int, Header, bytes, Incoming], None]

# Not of what is under way.
_AT_ANY_TIME = (Kind.PROBE, Kind.PRESENT)
# How often a thread looks whether it has been interrupted, if Python tells another one.
_LOOK_S = 0.2
_MAIN_LOOK_S = 5.0
# How long a rank that has waited too long waits for others to say that they are there.
_ANSWER_S = 0.5


@dataclass(frozen=True)
class _Stall:
    """That this rank has waited for long, and has asked the others whether they are there.

    Attributes:
        awaited: what for; empty if it has not.
        waited_s: how long.
        asked_at: when, by the monotonic clock.
    """

    awaited: str = ""
    waited_s: float = 0.0
    asked_at: float = 0.0


class Mailbox:
    """Of one rank of a group.

    Args:
        channel: between its ranks.
        rank: in the group.
        names: of its ranks, for people.
        timeout_s: how long to wait for one thing.
        stall_s: after how long to write to the log who waits for whom; 0 for never.

    Attributes:
        number: of what is under way, or was last.
        steps: how many have ended well; the same on all ranks, as steps end together.
    """

    def __init__(
        self,
        channel: Channel,
        rank: int,
        names: Sequence[str],
        timeout_s: float,
        stall_s: float = 30.0,
    ) -> None:
        self.channel = channel
        self.rank = rank
        self.size = len(names)
        self.number = 0
        self.steps = 0
        self._names = names
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._stall = _Stall()
        self._unread: list[Incoming | None] = []  # None stands for nothing
        self._present: set[int] = set()
        self._receive: Receive = _nothing
        self._interruption = ""
        self._thread = threading.main_thread()

    @property
    def others(self) -> list[int]:
        """All ranks of the group but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def begin(self, receive: Receive) -> None:
        """The next thing is under way; `take_early` gives it what has come already."""
        self.number += 1
        self._receive = receive
        self._interruption = ""
        self._thread = threading.current_thread()

    def end(self) -> None:
        """Nothing is under way."""
        self._receive = _nothing
        self._thread = threading.main_thread()

    def is_of(self, thread: threading.Thread) -> bool:
        """Whether this thread does what is under way."""
        return self._thread is thread

    def next_message(self, timeout_s: float) -> Incoming | None:
        """As of the channel; it is kept until it has been dealt with."""
        # In one call, between whose parts Python handles no signal: Ctrl-C loses no message.
        self._unread.extend(map(self.channel.next_message, (timeout_s,)))
        return self._unread[-1]

    def take_early(self) -> None:
        """Deals with what has come and is not of something that this rank has not begun."""
        unread = self._unread
        position = 0
        while position < len(unread):
            message = unread[position]
            if message is not None:
                fields = header_of(message.header)
                if fields.number > self.number and fields.kind not in _AT_ANY_TIME:
                    position += 1
                    continue
                try:
                    self._sort(message, fields)
                except Exception:  # after an interrupt it is dealt with again
                    del unread[position]
                    raise
            del unread[position]

    def wait_for(self, is_there: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Takes messages until something is there.

        Raises:
            StepAborted: another rank has ended what is under way.
            SMDDPTimeoutError: it has not come in time.
            KeyboardInterrupt: `interrupt` was called.
        """
        is_main = self._thread is threading.main_thread()
        look_s = _MAIN_LOOK_S if is_main else _LOOK_S
        if self._stall_s:
            look_s = min(look_s, self._stall_s / 2)
        wait = Wait(
            awaited,
            self._timeout_s,
            SMDDPTimeoutError,
            look_s,
            self._look,
            self._stall_s,
            self._ask_around,
        )
        self._stall = _Stall()
        try:
            self.take_early()
            while not is_there():
                wait.next_message(self)
                self.take_early()
        except SMDDPTimeoutError as error:
            silent = self._silent()
            if not is_there():
                raise SMDDPTimeoutError(f"{error} {self._words(silent)}") from None

    def _look(self) -> None:
        self.require_no_interrupt()
        stall = self._stall
        if stall.awaited and time.monotonic() >= stall.asked_at + _ANSWER_S:
            self._tell_of_stall(stall)
            self._stall = _Stall()

    def _ask_around(self, waited_s: float, awaited: str) -> None:
        """This rank waits for long. Answers come with other messages; `_look` tells of them."""
        self._stall = _Stall(awaited, waited_s, time.monotonic())
        self._probe()

    def _tell_of_stall(self, stall: _Stall) -> None:
        silent = [rank for rank in self.others if rank not in self._present]
        get_logger().warning(
            "%s has waited %.1f s in step %d, as all have run %d, for %s. %s%s It gives up after"
            " %.0f s.",
            self._names[self.rank],
            stall.waited_s,
            self.steps + 1,
            self.steps,
            stall.awaited,
            self._words(silent),
            f" {EQUALLY_MANY}" if silent else "",
            self._timeout_s,
        )

    def _probe(self) -> None:
        self._present = {self.rank}
        for rank in self.others:
            self.post(rank, Kind.PROBE)

    def _silent(self) -> list[int]:
        """The ranks that do not answer: whom this one waits for may itself wait for another."""
        self._probe()
        end = time.monotonic() + _ANSWER_S
        while len(self._present) < self.size and (left_s := end - time.monotonic()) > 0:
            self.next_message(left_s)
            self.take_early()
        return [rank for rank in self.others if rank not in self._present]

    def _words(self, silent: Sequence[int]) -> str:
        if not silent:
            return "All other ranks of the pipeline answer; they wait as well."
        named = ", ".join(self._names[rank] for rank in silent)
        return f"Of {named} nothing is heard: stopped, at work, or elsewhere in its script."

    def take_what_has_come(self) -> None:
        """Deals with messages that are here already; does not wait.

        Raises:
            StepAborted: as of `wait_for`.
            Exception: what the channel raises where nothing is left.
        """
        while self.size > 1 and self.next_message(0.0) is not None:
            self.take_early()

    def interrupt(self, reason: str) -> bool:
        """Ends what is under way; on Python's main thread Python does.

        Any thread may call it; it does not wait.

        Returns:
            Whether anything is.
        """
        if self._receive is _nothing:
            return False
        if self._thread is not threading.main_thread():
            self._interruption = reason
        return True

    def require_no_interrupt(self) -> None:
        """Raises KeyboardInterrupt if `interrupt` was called."""
        if self._interruption:
            raise KeyboardInterrupt(self._interruption)

    def end_interrupt(self) -> None:
        """It has been dealt with."""
        self._interruption = ""

    def post(self, dest: int, kind: Kind, program: int = 0, content: Any = None) -> None:
        """Sends what is no tensor, of what is under way."""
        post_object(self.channel, dest, kind, self.number, program, content)

    def tell_abort(self, reason: str) -> None:
        """What is under way has failed: all others end it as well. Raises nothing."""
        for rank in self.others:
            with contextlib.suppress(Exception):  # it is gone, or the group is
                self.post(rank, Kind.ABORT, content=reason)

    def _sort(self, message: Incoming, fields: Header) -> None:
        """Deals with a message; one of something that has failed is dropped."""
        if fields.kind == Kind.PROBE:
            self.post(message.source, Kind.PRESENT)
        elif fields.kind == Kind.PRESENT:
            self._present.add(message.source)
        elif fields.number == self.number:
            if fields.kind == Kind.ABORT:
                raise StepAborted(content_of(message.header))
            self._receive(message.source, fields, message.header, message)


def _nothing(source: int, fields: Header, header: bytes, message: Incoming) -> None:
    """Of something that has ended."""
