# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The driver's end of one rank: its process, what it is told, and what it says."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.multihost.hosts import Host

ROOT = Path(__file__).resolve().parents[3]
_END_DEADLINE_S = 20.0
_TCP_LISTEN = "0A"

Mail = queue.SimpleQueue["tuple[RankProcess, dict[str, Any]]"]


class RankProcess:
    """One rank, as a process on a test host.

    Attributes:
        rank: its number, which its replacement takes over.
        host: where it runs.
        pid: of the process.
    """

    def __init__(
        self,
        rank: int,
        host: Host,
        environment: Mapping[str, str],
        log: Path,
        seed: int,
        mail: Mail,
    ) -> None:
        """Starts it. What it says goes to `mail`, as `{"tell": ...}`; `gone` is the last word.

        Its output is appended to the file `log`.
        """
        self.rank, self.host, self.log = rank, host, log
        reading, writing = os.pipe()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                host.command(
                    [sys.executable, "-m", "tests.soak.over_hosts.rank", str(writing), str(seed)]
                ),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                pass_fds=(writing,),
                process_group=0,  # Ctrl-C is for the driver
            )
        os.close(writing)
        self.pid = self._process.pid
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._reader = threading.Thread(target=self._read, args=(reading, mail), daemon=True)
        self._reader.start()

    def _read(self, reading: int, mail: Mail) -> None:
        with os.fdopen(reading) as lines, contextlib.suppress(ValueError):
            for line in lines:  # the last one may be cut off by SIGKILL: a ValueError
                mail.put((self, json.loads(line)))
        mail.put((self, {"tell": "gone"}))

    def tell(self, what: str, **details: Any) -> None:
        """Send a command of `rank.py`; to one that is gone, nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": what, **details}).encode() + b"\n")
            self._process.stdin.flush()

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def send_strangers(self, from_host: Host, seconds: float, seed: int) -> None:
        """Let strangers on `from_host` knock at each port at which this rank listens."""
        ports = [str(port) for port in self._listening_ports()]
        command = [sys.executable, "-m", "tests.soak.over_hosts.strangers"]
        options = [self.host.address, str(seconds), str(seed), *ports]
        self._helpers.append(
            subprocess.Popen(
                from_host.command([*command, *options]), cwd=ROOT, stdin=subprocess.DEVNULL
            )
        )

    def _listening_ports(self) -> list[int]:
        inodes = set()
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{self.pid}/fd/{name}"))
        lines = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        found = [line.split() for line in lines]
        return [
            int(fields[1].rpartition(":")[2], 16)
            for fields in found
            if fields[3] == _TCP_LISTEN and f"socket:[{fields[9]}]" in inodes
        ]

    def await_helpers(self) -> str | None:
        """Wait for the strangers; what they complain about, or None."""
        for helper in self._helpers:
            if helper.wait(_END_DEADLINE_S) != 0:
                return f"the strangers at rank {self.rank} ended with status {helper.returncode}"
        self._helpers.clear()
        return None

    def end(self, number: int = signal.SIGKILL) -> int:
        """Its exit status, after a signal if it is still there."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit status, once it has ended by itself; it is killed if it does not in time."""
        try:
            status = self._process.wait(_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(_END_DEADLINE_S)
        return status

    def stacks(self) -> str:
        """Where its threads are: Python's go to its log; the native ones too where gdb is there."""
        if self._process.poll() is not None:
            return f"rank {self.rank} has ended with status {self._process.returncode}"
        self.send_signal(signal.SIGUSR2)
        debugger = shutil.which("gdb")
        if debugger is None:
            return ""
        command = [debugger, "-p", str(self.pid), "-batch", "-ex", "thread apply all backtrace 30"]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=120.0)
        return f"native stacks of rank {self.rank} (pid {self.pid}):\n{outcome.stdout}"
