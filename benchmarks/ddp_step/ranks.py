# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks, seen from the process that gives out the turns. Between commands they sleep."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import child_processes

_START_DEADLINE_S = 180.0
_COMMAND_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 15.0


class RanksFailed(Exception):
    """A rank crashed, hung or computed a wrong result; all have been ended."""


class Ranks:
    """`worker.py` processes behind pipes."""

    def __init__(self, size: int) -> None:
        """Start the ranks and wait for all. Raises `RanksFailed`."""
        self.size = size
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by kill()
        self._unread = [b""] * size
        port = child_processes.find_free_port()
        worker = Path(__file__).with_name("worker.py")
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(worker)],
                env=_variables(rank, size, port),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                process_group=0,  # not a session: Linux schedules those as units
            )
            for rank in range(size)
        ]
        self.version = str(self._answers("start", _START_DEADLINE_S)[0]["version"])

    def ask(self, verb: str, **fields: Any) -> list[dict[str, Any]]:
        """Send one command to all ranks; their answers by rank. Raises `RanksFailed`."""
        command = {"verb": verb, "deadline_s": _COMMAND_DEADLINE_S + 10, **fields}
        line = (json.dumps(command) + "\n").encode()
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError:
                raise self._failure(f"rank {rank} has ended") from None
        answers = self._answers(verb, _COMMAND_DEADLINE_S)
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:  # some ranks may be one collective behind the others
            raise self._failure(errors[0])
        return answers

    def _answers(self, verb: str, deadline_s: float) -> list[dict[str, Any]]:
        end = time.monotonic() + deadline_s
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < self.size:
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    missing = sorted(set(range(self.size)) - set(answers))
                    raise self._failure(
                        f"{verb} did not end within {deadline_s:.0f} s on ranks {missing}"
                    )
                for key, _ in ready:
                    rank = key.data
                    piece = os.read(key.fd, 1 << 20)
                    if not piece:
                        raise self._failure(f"rank {rank} ended during {verb}")
                    self._unread[rank] += piece
                    if self._unread[rank].endswith(b"\n"):
                        answers[rank] = json.loads(self._unread[rank])
                        self._unread[rank] = b""
                        selector.unregister(key.fileobj)
        return [answers[rank] for rank in range(self.size)]

    def _failure(self, words: str) -> RanksFailed:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        telling = [line.strip() for line in lines if "rror" in line] or lines
        self.kill()
        return RanksFailed(words + (f" (the log: {telling[-1][:300]})" if telling else ""))

    def stop(self) -> None:
        """Let the ranks leave; end those that do not."""
        for process in self._processes:
            if process.poll() is None and process.stdin is not None:
                try:
                    process.stdin.write(b'{"verb": "stop"}\n')
                    process.stdin.close()
                except OSError:
                    continue
        child_processes.wait_for_all(self._processes, _STOP_DEADLINE_S)
        self.kill()

    def kill(self) -> None:
        """End every rank now."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return os.environ | child_processes.membership_variables(rank, size, port) | threads
