# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The machine while a turn runs: core states, other programs' use of the processors, the floor.

Probe and floor are those of the `collectives` benchmark.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from shared import FloorProgram


class OtherLoad:
    """How much of the processors somebody else used during a turn.

    The kernel counts idle time per processor in ticks of 10 ms, so a turn should last 100 ms or
    more. What is neither idle nor the ranks' own is somebody else's.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._idle = _idle_seconds()

    def share(self, own_cpu_seconds: float) -> float:
        """Share of all processors' time since the object was made; 0 is an idle machine."""
        wall = time.monotonic() - self._begin
        total = wall * (os.cpu_count() or 1)
        return max(0.0, (total - (_idle_seconds() - self._idle) - own_cpu_seconds) / total)


def _idle_seconds() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


class Floor:
    """The least time in which two ranks can sum a model's gradients: `staged` of `floor.c`."""

    def __init__(self, gradient_bytes: int) -> None:
        """Raises `LibraryAbsent`: one processor only, or no C compiler."""
        self._bytes = gradient_bytes // 4 * 4
        self._program = FloorProgram(self._bytes)

    def seconds(self) -> float:
        """One sum of all gradients in one piece, with the best segment size."""
        return self._program.staged_seconds(self._bytes, 3)

    def stop(self) -> None:
        """End the program."""
        self._program.stop()
