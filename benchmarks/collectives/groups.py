# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The running ranks of one library, seen from the process that gives out the turns.

A group answers ``prepare``, ``run``, ``verify`` and ``release``, each for one of the cases that it
holds buffers for. Between commands its ranks sleep in a read. A group that crashes or hangs is
ended and reported in words; the run goes on without it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from cases import Case
from common.child_processes import find_free_port, wait_for_all
from libraries import Library, LibraryAbsent

START_DEADLINE_S = 120.0
COMMAND_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 10.0


class GroupFailed(Exception):
    """The group crashed, hung or computed a wrong result; it has been ended."""


class CaseUnsupported(Exception):
    """The library does not offer this case; the group lives on."""


class MeasuredGroup(Protocol):
    """What the run needs from anything that can be measured."""

    version: str

    def prepare(self, case: Case) -> float:
        """Allocate, verify, warm up; seconds of one call."""

    def run(self, case: Case, inner: int, batches: int) -> list[float]:
        """Seconds per call of each batch, the slowest rank's."""

    def verify(self, case: Case) -> None:
        """Compare the result of one call with the expected one."""

    def release(self, case: Case) -> None:
        """Give the buffers back."""

    def stop(self) -> None:
        """End all processes of the group."""


class WorkerGroup:
    """Ranks of a Python library: ``worker.py`` processes behind a control socket."""

    command_deadline_s = COMMAND_DEADLINE_S

    def __init__(self, library: Library, ranks: int) -> None:
        """Start the ranks and wait for all. Raises ``GroupFailed`` or ``LibraryAbsent``."""
        self.library, self.ranks, self.version = library, ranks, ""
        self._sockets: dict[int, socket.socket] = {}
        self._pids: list[int] = []
        self._unread: dict[int, bytes] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="smd-bench-")
        control = Path(self._folder.name) / "control"
        self._log_path = Path(self._folder.name) / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            commands = library.commands(ranks, control)
        except BaseException:
            self._folder.cleanup()
            raise
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(control))
            listener.listen(ranks)
            listener.settimeout(0.5)
            port = find_free_port()
            with self._log_path.open("wb") as log:
                for rank, command in enumerate(commands):
                    self._processes.append(
                        subprocess.Popen(
                            command,
                            env=library.variables_of(rank, ranks, port),
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                            # Not a session of its own: Linux schedules sessions as units
                            # (autogroup), and ranks that a launcher starts are in one.
                            process_group=0,
                        )
                    )
            try:
                self._welcome(listener)
            except BaseException:
                self.kill()
                raise

    def _welcome(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        waiting: list[socket.socket] = []
        while len(waiting) < self.ranks:
            if time.monotonic() > deadline:
                raise self._failure(f"only {len(waiting)} of {self.ranks} ranks started in time")
            if any(process.poll() not in (None, 0) for process in self._processes):
                raise self._failure("a rank or its launcher ended while starting")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            waiting.append(connection)
        for connection in waiting:
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                line = connection.makefile("rb").readline()
            except TimeoutError:
                raise self._failure("a rank did not join its group in time") from None
            hello: dict[str, Any] = (
                json.loads(line) if line else {"error": "a rank ended while joining its group"}
            )
            if "pid" in hello:
                self._pids.append(hello["pid"])
            if "absent" in hello:
                raise LibraryAbsent(hello["absent"])
            if "error" in hello:
                raise self._failure(hello["error"])
            self.version = hello["version"]
            if hello["ranks"] != self.ranks:
                raise self._failure(f"the library sees {hello['ranks']} ranks, not {self.ranks}")
            connection.settimeout(None)
            connection.setblocking(False)
            self._sockets[hello["rank"]] = connection

    def _failure(self, words: str) -> GroupFailed:
        tail = ""
        if self._log_path.exists():
            lines = self._log_path.read_text(errors="replace").strip().splitlines()
            telling = [line.strip() for line in lines if "rror" in line or "abort" in line.lower()]
            if telling or lines:
                tail = f" (its log: {_without_paths((telling or lines)[-1])[:200]})"
        return GroupFailed(words + tail)

    def _ask(self, verb: str, case: Case, **fields: int) -> list[Any]:
        """Send one command to all ranks; their answers by rank. Raises ``GroupFailed``."""
        deadline_s = self.command_deadline_s
        command = {"verb": verb, "deadline_s": deadline_s + 10, "case": case.to_json(), **fields}
        message = json.dumps(command) + "\n"
        end = time.monotonic() + deadline_s
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._sockets.items():
                try:
                    connection.sendall(message.encode())
                except OSError:
                    self.kill()
                    raise self._failure(f"rank {rank} has ended") from None
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(answers) < self.ranks:
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    self.kill()
                    missing = sorted(set(self._sockets) - set(answers))
                    found = next((a["error"] for a in answers.values() if "error" in a), "")
                    raise self._failure(
                        f"{verb} did not end within {deadline_s:.0f} s on ranks {missing}"
                        + (f"; another rank said: {found}" if found else "")
                    )
                for key, _ in ready:
                    assert isinstance(key.fileobj, socket.socket)
                    piece = key.fileobj.recv(1 << 20)
                    if not piece:
                        self.kill()
                        raise self._failure(f"rank {key.data} ended during {verb}")
                    self._unread[key.data] = self._unread.get(key.data, b"") + piece
                    if self._unread[key.data].endswith(b"\n"):
                        answers[key.data] = json.loads(self._unread.pop(key.data))
                        selector.unregister(key.fileobj)
        return [answers[rank] for rank in sorted(answers)]

    def prepare(self, case: Case) -> float:
        answers = self._ask("prepare", case)
        refusals = [answer["unsupported"] for answer in answers if "unsupported" in answer]
        if len(refusals) == self.ranks:
            raise CaseUnsupported(refusals[0])
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors or refusals:
            self.kill()  # after an error some ranks may be one call behind the others
            raise GroupFailed((errors or refusals)[0])
        return float(max(answer["seconds"] for answer in answers))

    def run(self, case: Case, inner: int, batches: int) -> list[float]:
        answers = self._ask("run", case, inner=inner, batches=batches)
        self._raise_on_error(answers)
        return [max(times) for times in zip(*(a["seconds"] for a in answers), strict=True)]

    def verify(self, case: Case) -> None:
        self._raise_on_error(self._ask("verify", case))

    def _raise_on_error(self, answers: list[Any]) -> None:
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            self.kill()
            raise GroupFailed(errors[0])

    def release(self, case: Case) -> None:
        self._ask("release", case)

    def stop(self) -> None:
        """Ask the ranks to leave; end those that do not within 10 s."""
        for connection in self._sockets.values():
            try:
                connection.sendall(b'{"verb": "stop"}\n')
            except OSError:
                continue
        wait_for_all(self._processes, _STOP_DEADLINE_S)
        self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        """End every process of the group now, and close what belongs to it."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        # mpiexec starts ranks in process groups of their own, which killpg does not reach.
        for pid in filter(_is_worker, self._pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._processes:
            process.wait()
        for connection in self._sockets.values():
            connection.close()
        self._pids = []


def _is_worker(pid: int) -> bool:
    """Whether ``pid`` is still a worker and not a newer process with the same number."""
    try:
        return b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _without_paths(text: str) -> str:
    """Absolute paths shortened to their last part: results are published."""
    return " ".join(word.rsplit("/", 1)[-1] if "/" in word else word for word in text.split())
