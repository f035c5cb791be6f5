# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What carries the bytes between a courier and the job's process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Link", "ProcessLink"]

_MOST_READ = 1 << 20
_CLOSE_S = 10.0
_LAST_LINES = 5


class Link(Protocol):
    """To one courier."""

    def pids(self) -> list[int]:
        """Numbers of processes that this one has started for it, and reaps itself."""

    def read(self) -> bytes:
        """What has come, at least a byte of it; waits for it. Empty: nothing comes any more."""

    def write(self, content: bytes) -> None:
        """Sends all of it; may wait.

        Raises:
            OSError: nothing goes there any more.
        """

    def why_closed(self) -> str:
        """Why nothing comes any more, in words."""

    def cut(self) -> None:
        """Nothing comes or goes any more. From any thread; once is as good as twice."""

    def end(self, timeout_s: float) -> None:
        """Waits for the courier to end, which was told to; then cuts the link."""

    def free(self) -> None:
        """Nobody reads or writes any more: nothing of it is left."""


class ProcessLink:
    """The standard input and output of a process.

    Args:
        command: of it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this does
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._incoming = self._process.stdout
        self._outgoing = self._process.stdin

    def pids(self) -> list[int]:
        """Of the process."""
        return [self._process.pid]

    def read(self) -> bytes:
        """As of `Link`."""
        return os.read(self._incoming.fileno(), _MOST_READ)

    def write(self, content: bytes) -> None:
        """As of `Link`."""
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._outgoing.fileno(), rest) :]

    def why_closed(self) -> str:
        """What the process has printed, and how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_S)
        said = os.pread(self._errors.fileno(), _MOST_READ, 0).decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        text = " ".join(lines[-_LAST_LINES:]) or "it printed nothing"
        return f"the connection ended with status {self._process.returncode}: {text}"

    def cut(self) -> None:
        """Kills the process."""
        if self._process.poll() is None:
            self._process.kill()

    def end(self, timeout_s: float) -> None:
        """As of `Link`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def free(self) -> None:
        """As of `Link`."""
        for file in (self._incoming, self._outgoing, self._errors):
            with contextlib.suppress(OSError):
                file.close()
