# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Says which replica has run fewer steps, where no step has ended for long.

A rank that waits for another replica does so in the script's own all-reduce, of which this library
sees no step. So a rank on which no step has ended for long asks its counterparts how many they have
run, and tells of those that have run fewer. While steps end, nothing is sent.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import enum
import struct
import threading
import time
from collections.abc import Sequence

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.messages.channel import Channel, Incoming

__all__ = ["StepWatch"]

_LOOK_S = 5.0
_JOIN_S = 2.0
# Kind; the steps of the rank that asks; in the answer, those of the rank that answers.
_MESSAGE = struct.Struct("<BQQ")


class _Kind(enum.IntEnum):
    ASK = 0
    TELL = 1


class StepWatch:
    """Of one rank, from `start` to `close`; it has a thread.

    Args:
        channel: between the counterparts; nobody else uses its messages.
        rank: in it.
        names: of its ranks, for people.
        stall_s: after how long without a step to ask.
        advice: the end of the warning, a sentence.
    """

    def __init__(
        self, channel: Channel, rank: int, names: Sequence[str], stall_s: float, advice: str
    ) -> None:
        self._channel = channel
        self._rank = rank
        self._names = names
        self._stall_s = stall_s
        self._advice = advice
        self._steps = 0
        self._since = time.monotonic()
        self._asked = 0  # before the first step there is nothing to ask
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="smp-step-watch", daemon=True)

    def start(self) -> None:
        """From now on it looks."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. What was posted to this rank is left."""
        self._is_over.set()
        self._thread.join(_JOIN_S)

    def step_ended(self) -> None:
        """A step has ended well on this rank."""
        self._steps += 1
        self._since = time.monotonic()

    def look(self) -> None:
        """Answers what counterparts have asked, and asks them if no step has ended for long.

        Raises:
            Exception: what the channel raises, where a counterpart is gone.
        """
        while (message := self._channel.next_message(0.0)) is not None:
            self._take(message)
        steps = self._steps
        if steps != self._asked and time.monotonic() - self._since >= self._stall_s:
            self._asked = steps
            for other in range(len(self._names)):
                if other != self._rank:
                    self._post(other, _Kind.ASK, steps, 0)

    def _take(self, message: Incoming) -> None:
        kind, asked, theirs = _MESSAGE.unpack(message.header)
        if kind == _Kind.ASK:
            self._post(message.source, _Kind.TELL, asked, self._steps)
        elif theirs < asked == self._steps:
            get_logger().warning(
                "%s has run %d steps, and no other for %.1f s; %s, which has the same partition of"
                " another replica, has run %d. An all-reduce here, as of hvd.allreduce(), waits for"
                " that rank. %s",
                self._names[self._rank],
                asked,
                time.monotonic() - self._since,
                self._names[message.source],
                theirs,
                self._advice,
            )

    def _post(self, dest: int, kind: _Kind, asked: int, steps: int) -> None:
        self._channel.post_message(dest, _MESSAGE.pack(kind, asked, steps), [])

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # a counterpart is gone, which operations tell of
            while not self._is_over.wait(min(_LOOK_S, self._stall_s / 4)):
                self.look()
