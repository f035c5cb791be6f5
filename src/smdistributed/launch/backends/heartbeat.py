# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether an agent gives signs of life: it touches a file about once a second while ranks run.

An agent that was stopped (SIGSTOP), or hangs, lives for its lock and for the kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["MOST_SILENT_S", "Heartbeat"]

MOST_SILENT_S = 15.0
"""An agent that was silent for so long is dead."""

# Of what lies between two looks no more counts: this process was stopped itself, or the machine.
_LONGEST_LOOK_S = 1.0
# From then on it is tried whether anything could be touched on that disk.
_SUSPICIOUS_S = 3.0


class Heartbeat:
    """Of one agent, as another process sees it that looks often.

    Args:
        file: that the agent touches. As long as it is not there, nothing is expected.
        clock: seconds, monotonic.
        is_expected: something is, from now on: what is not there is silent.
    """

    def __init__(
        self,
        file: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_expected: bool = False,
    ) -> None:
        self._file = file
        self._is_expected = is_expected
        self._clock = clock
        self._looked_at = clock()
        self._seen = 0
        self._silent_s = 0.0

    def silent_s(self) -> float:
        """For how many seconds the agent was silent, of those in which this process has looked."""
        now = self._clock()
        step = min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        try:
            touched = self._touched()
            if touched == self._seen and self._silent_s >= _SUSPICIOUS_S:
                os.utime(self._file.parent)
        except OSError:  # no ranks run; or a disk on which nobody could touch anything
            return 0.0
        self._silent_s = self._silent_s + step if touched == self._seen else 0.0
        self._seen = touched
        return self._silent_s

    def _touched(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except FileNotFoundError:
            if self._is_expected:
                return 0
            raise
