# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How a job's process in a cluster tells what is new: by lines of a log that others write to."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from smdistributed.launch.backends.in_cluster import driver as drivers
from smdistributed.launch.backends.in_cluster.driver import LogLines
from smdistributed.launch.courier.lines import message_of
from smdistributed.launch.courier.messages import Kept

PIECES = 40
PIECE = 24 << 10


def test_what_others_write_to_the_log_tears_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.touch()
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    is_over = threading.Event()

    def noise() -> None:
        while not is_over.is_set():
            os.write(log, b"INFO: ray says something\nand not all of it")

    telling = object.__new__(drivers._Telling)
    telling._num_told = 0
    with os.fdopen(log, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        telling._log = LogLines(log, is_over)
        other = threading.Thread(target=noise)
        other.start()
        try:
            for number in range(PIECES):
                telling._print(Kept("job", "job.json", number, 0, 0, False, bytes(PIECE)))
        finally:
            is_over.set()
            other.join()
    found = [message_of(line) for line in path.read_text().split("\n")]
    assert [each[0] for each in found if each is not None] == list(range(1, PIECES + 1))


class Disk:
    """That is full for a while.

    Args:
        results: of calls: how many bytes are written, or what is raised.
    """

    def __init__(self, *results: int | OSError) -> None:
        self._results = list(results)
        self.content = b""

    def write(self, _: int, content: bytes) -> int:
        result = self._results.pop(0) if self._results else len(content)
        if isinstance(result, OSError):
            raise result
        self.content += content[:result]
        return result


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_loses_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(FULL, 3, FULL)
    monkeypatch.setattr(drivers.os, "write", disk.write)
    monkeypatch.setattr(drivers, "_AGAIN_S", 0.0)
    lines = LogLines(1, threading.Event())
    lines.write("first")
    lines.write("second")
    assert disk.content == b"\nfi\nfirst\n\nsecond\n"


def test_a_disk_that_stays_full_is_said_once_the_job_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers.os, "write", Disk(*[FULL] * 1000).write)
    monkeypatch.setattr(drivers, "_AGAIN_S", 0.001)
    monkeypatch.setattr(drivers, "_GIVE_UP_S", 0.01)
    is_over = threading.Event()
    is_over.set()
    with pytest.raises(OSError, match="No space left"):
        LogLines(1, is_over).write("first")


def test_a_job_goes_on_if_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers.os, "write", Disk(BrokenPipeError()).write)
    LogLines(1, threading.Event()).write("first")
