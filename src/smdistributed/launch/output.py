# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
r"""The output of the processes: whole lines, each with the rank that wrote it.

A progress bar rewrites its line with `\r` and ends it, minutes later, with `\n`. Passed on byte by
byte the bars of several ranks would destroy each other, and in a log file they would make one
endless line. Therefore:

- A finished line is what a terminal would show of it: the text after its last `\r`.
- Unfinished rewrites are shown for rank 0 only. On a terminal they are drawn on the last line,
  which other lines push down; elsewhere one is written as a line of its own every few seconds.
"""

import collections
import os
import shutil
import time
from collections.abc import Callable
from typing import BinaryIO

__all__ = ["Console", "LineAssembler", "RankStream"]

# A line longer than this is passed on in pieces, rather than kept.
_MAX_LINE_BYTES = 64 * 1024
_PROGRESS_PERIOD_S = 10.0
_ERASE_LINE = b"\r\x1b[K"


class LineAssembler:
    """Makes lines out of the chunks that a pipe delivers."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        r"""Returns the lines that `chunk` finishes, without `\n` and without overwritten text."""
        self._pending += chunk
        *finished, rest = self._pending.split(b"\n")
        self._pending = bytearray(rest)
        if len(self._pending) > _MAX_LINE_BYTES:
            visible = self._pending.rpartition(b"\r")[2]
            if len(visible) > _MAX_LINE_BYTES:
                finished.append(self._pending)
                self._pending = bytearray()
            else:
                self._pending = bytearray(b"\r" + visible)
        return [_visible(bytes(line)) for line in finished]

    @property
    def progress(self) -> bytes | None:
        r"""What an unfinished line that is being rewritten with `\r` shows now, or `None`."""
        return _visible(bytes(self._pending)) if b"\r" in self._pending else None

    def finish(self) -> bytes | None:
        """Returns the last line, if it had no end."""
        rest, self._pending = bytes(self._pending), bytearray()
        return _visible(rest) if rest else None


def _visible(line: bytes) -> bytes:
    # "\r\n" ends a line in other systems; the "\r" overwrites nothing then.
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Console:
    """Writes lines to our own stdout and stderr, and keeps one progress line at the bottom.

    Args:
        stdout: where lines of standard output go.
        stderr: where lines of standard error go.
        clock: seconds, monotonic.
    """

    def __init__(
        self, stdout: BinaryIO, stderr: BinaryIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._clock = clock
        self._drawn_on: BinaryIO | None = None
        self._last_progress = clock()

    def write_line(self, line: bytes, *, to_stderr: bool) -> None:
        """Writes one line, without its end, in one piece."""
        self._erase()
        stream = self._stderr if to_stderr else self._stdout
        stream.write(line + b"\n")
        stream.flush()

    def write_progress(self, text: bytes, *, to_stderr: bool) -> None:
        """Shows a line that is going to be rewritten."""
        stream = self._stderr if to_stderr else self._stdout
        if stream.isatty():
            self._erase()
            # A line that wraps could not be erased any more.
            width = shutil.get_terminal_size().columns - 1
            stream.write(text.decode(errors="replace")[:width].encode())
            stream.flush()
            self._drawn_on = stream
        elif self._clock() - self._last_progress >= _PROGRESS_PERIOD_S:
            self._last_progress = self._clock()
            self.write_line(text, to_stderr=to_stderr)

    def abandon(self) -> None:
        """Throws away everything from now on; for when nobody reads it any more."""
        self._drawn_on = None
        # Open to the end of the process: there is no later moment at which to close it.
        self._stdout = self._stderr = open(os.devnull, "wb")  # noqa: SIM115

    def close(self) -> None:
        """Takes the progress line away."""
        self._erase()

    def _erase(self) -> None:
        if self._drawn_on is not None:
            self._drawn_on.write(_ERASE_LINE)
            self._drawn_on.flush()
            self._drawn_on = None


class RankStream:
    """One of the two output streams of one rank.

    Args:
        console: where its lines go.
        rank: the rank, for the prefix; the progress of rank 0 is shown.
        to_stderr: the stream is standard error.
        last_lines: keeps the last lines, for the summary of a failure.
        prefix: comes before each line; None: "[rank 3] ".
    """

    def __init__(
        self,
        console: Console,
        rank: int,
        *,
        to_stderr: bool,
        last_lines: "collections.deque[bytes]",
        prefix: bytes | None = None,
    ) -> None:
        self._console = console
        self._rank = rank
        self._to_stderr = to_stderr
        self._last_lines = last_lines
        self._prefix = f"[rank {rank}] ".encode() if prefix is None else prefix
        self._assembler = LineAssembler()
        self._shown: bytes | None = None

    def feed(self, chunk: bytes) -> None:
        """Takes what the process wrote."""
        for line in self._assembler.feed(chunk):
            self._write(line)
        progress = self._assembler.progress
        if self._rank == 0 and progress and progress != self._shown:
            self._console.write_progress(self._prefix + progress, to_stderr=self._to_stderr)
        self._shown = progress

    def finish(self) -> None:
        """Writes what has no line end; the process is gone."""
        line = self._assembler.finish()
        if line:
            self._write(line)

    def _write(self, line: bytes) -> None:
        self._last_lines.append(line)
        self._console.write_line(self._prefix + line, to_stderr=self._to_stderr)
