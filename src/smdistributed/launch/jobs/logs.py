# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the hosts of a job log, read while they write it.

Source: launch specification, section 8.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["JobLog", "LogLine"]

# Of a log; a line of a rank is shorter (`launch.output`).
_MOST_AT_ONCE = 1 << 20
# Of the time at the begin of a line, such as 2026-11-27T14:30:42.013Z, and a space.
_TIME_BYTES = 24


class LogLine(NamedTuple):
    """A line of a host's log.

    Attributes:
        time: as ISO 8601 in UTC, with milliseconds. It never goes back on a host, though the
            machine's clock may.
        host: the number of the host, from 1.
        text: what a rank has printed, with the prefix that says which, if the job has ranks.
    """

    time: bytes
    host: int
    text: bytes


class JobLog:
    """The lines of a job's hosts, each once.

    Args:
        directory: of the job.
        host: such as `algo-1`: of that host alone; None: of all.
        rank: of that rank alone, of ranks of a job; None: of all.
    """

    def __init__(
        self, directory: Path, *, host: str | None = None, rank: int | None = None
    ) -> None:
        self._directory = directory
        self._pattern = f"{host or 'algo-*'}/log"
        self._prefix = b"" if rank is None else f"[1,mpirank:{rank},".encode()
        self._positions: dict[Path, int] = {}
        self._latest: dict[int, bytes] = {}

    def new(self) -> Iterator[LogLine]:
        """Lines that have come since; of several hosts about in the order of time."""
        while lines := list(self._next()):
            for line in sorted(lines, key=lambda each: each[:2]):
                if line.text.startswith(self._prefix):
                    yield line

    def _next(self) -> Iterator[LogLine]:
        """The next lines of each host."""
        for path in (self._directory / "hosts").glob(self._pattern):
            host = int(path.parent.name.removeprefix("algo-"))
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                content = file.read(_MOST_AT_ONCE)
            end = content.rfind(b"\n") + 1
            self._positions[path] = self._positions.get(path, 0) + end
            for line in content[:end].split(b"\n")[:-1]:
                latest = max(self._latest.get(host, b""), line[:_TIME_BYTES])
                self._latest[host] = latest
                yield LogLine(latest, host, line[_TIME_BYTES + 1 :])
