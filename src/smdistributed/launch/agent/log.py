# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The log of one host: lines of its ranks, each with the time, and the metrics found in them.

A line is `<time> <text>`. Of ranks of one job the text begins as MPI's launchers write it,
`[1,mpirank:3,algo-1]<stdout>:`, with the host that is true.

Source: launch specification, sections 7.3, 8.1 and 8.2.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import json
from pathlib import Path

from smdistributed.launch.jobs.files import append_line
from smdistributed.launch.metrics import Scanner
from smdistributed.launch.output import Console
from smdistributed.launch.tensorboard import EventFile

__all__ = ["HostLog", "rank_prefix"]


def rank_prefix(rank: int, host: str, to_stderr: bool) -> bytes:
    """What comes before a line of a rank of a job.

    Args:
        rank: in the job.
        host: that it runs on.
        to_stderr: the line is of standard error.
    """
    return f"[1,mpirank:{rank},{host}]<{'stderr' if to_stderr else 'stdout'}>:".encode()


class HostLog(Console):
    """Writes lines to the log, and metrics beside it. Not for several threads.

    Args:
        path: of the log; lines are added to what is there.
        metrics: of the file for what is found.
        scanner: finds it.
        events: what is found, for TensorBoard.
    """

    def __init__(self, path: Path, metrics: Path, scanner: Scanner, events: EventFile) -> None:
        self._file = path.open("ab", buffering=0)
        super().__init__(self._file, self._file)
        self._metrics = metrics
        self._scanner = scanner
        self._events = events

    def write_line(self, line: bytes, *, to_stderr: bool) -> None:
        """Writes a line, without its end, in one piece."""
        now = dt.datetime.now(dt.UTC)
        time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        whole = time.encode() + b" " + line + b"\n"
        if self._file.write(whole) != len(whole):  # the disk is full, and the next one would say so
            raise OSError(errno.ENOSPC, "a line was cut off", self._file.name)
        for name, value in self._scanner.found(line.decode(errors="replace")):
            point = {"time": now.timestamp(), "name": name, "value": value}
            with contextlib.suppress(OSError):  # a metric is worth less than the training
                append_line(self._metrics, json.dumps(point).encode())
                self._events.add(now.timestamp(), name, value)

    def close(self) -> None:
        """Closes the log."""
        self._file.close()
