# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for a message: says so when it takes long, and ends when it takes too long.

Source: our choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.messages.channel import Incoming, Source

__all__ = ["Wait"]

_log = get_logger()

# How often a rank that waits looks whether it has waited too long, and after how long it says so.
_LOOK_S = 5.0
_STALL_S = 30.0


def _tell(waited_s: float, awaited: str) -> None:
    _log.warning("nothing has come for %.0f s; expected %s", waited_s, awaited)


class Wait:
    """For something that one or more messages bring.

    Args:
        awaited: what is expected, in words; empty if nothing is: then there is no limit.
        timeout_s: how long to wait, from now on.
        late: the class of the error.
        look_s: how often to look at what else may end it (`look`).
        look: called then; what it raises ends the wait.
        stall_s: after how long to say so, once; 0 for never.
        tell: says so; called with the seconds and with what is awaited.
    """

    def __init__(
        self,
        awaited: Callable[[], str],
        timeout_s: float,
        late: type[Exception],
        look_s: float = _LOOK_S,
        look: Callable[[], None] = lambda: None,
        stall_s: float = _STALL_S,
        tell: Callable[[float, str], None] = _tell,
    ) -> None:
        self._awaited = awaited
        self._timeout_s = timeout_s
        self._late = late
        self._look_s = look_s
        self._look = look
        self._stall_s = stall_s or math.inf
        self._tell = tell
        self._begin = time.monotonic()
        self._has_told = False

    def next_message(self, source: Source) -> Incoming:
        """The next message, whatever it is.

        Raises:
            Exception: of the class `late`: it has not come in time. What the source raises.
        """
        while True:
            waited_s = time.monotonic() - self._begin
            left_s = max(self._timeout_s - waited_s, 0.0) or self._look_s
            message = source.next_message(min(self._look_s, left_s))
            if message is not None:
                return message
            self._look()
            self._require_patience(time.monotonic() - self._begin)

    def _require_patience(self, waited_s: float) -> None:
        if waited_s >= self._timeout_s and (awaited := self._awaited()):
            raise self._late(
                f"nothing has come for {waited_s:.0f} s; expected {awaited}. Look at"
                " what that rank does, or allow more time with SMDDP_TIMEOUT_SECONDS."
            )
        if waited_s >= self._stall_s and not self._has_told and (awaited := self._awaited()):
            self._has_told = True
            self._tell(waited_s, awaited)
