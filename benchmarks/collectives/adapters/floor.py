# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The floor (``floor.c``), measured in turn like a library.

One group per protocol; all of them share one pair of processes.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

from cases import Case
from groups import COMMAND_DEADLINE_S, CaseUnsupported, GroupFailed
from libraries import LibraryAbsent
from native_programs import CannotBuild, build

SEGMENTS_KIB = (64, 128, 256, 512)


class FloorProgram:
    """The running program. All protocols share it, as they share its buffers."""

    def __init__(self, max_bytes: int) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            raise LibraryAbsent("the floor needs two CPUs, this process may use one only")
        try:
            source = Path(__file__).resolve().parents[1] / "floor.c"
            program = build(source, ("-O3", "-march=native"))
        except CannotBuild as error:
            raise LibraryAbsent(str(error)) from error
        self._process = subprocess.Popen(
            [str(program), str(max(max_bytes, 1 << 20)), str(cpus[0]), str(cpus[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> Any:
        """One command, one JSON answer. Raises ``GroupFailed``."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(command + "\n")
            process.stdin.flush()
        except OSError:
            raise GroupFailed("the floor program has ended") from None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(COMMAND_DEADLINE_S):
                process.kill()
                raise GroupFailed(f"the floor program did not answer {command!r}")
        line = process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the floor program has ended"}
        if "error" in answer:
            raise GroupFailed(f"{answer['error']} (command {command!r})")
        return answer

    def stop(self) -> None:
        """Let both processes end."""
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()


class FloorGroup:
    """One protocol of the floor, for all_reduce of float32 (``flag`` stands in for barrier)."""

    version = "floor.c"

    def __init__(self, program: FloorProgram, variant: str) -> None:
        self._program, self._variant = program, variant
        self._protocol = variant
        self._case: Case | None = None

    def prepare(self, case: Case) -> float:
        if case.ranks != 2:
            raise CaseUnsupported("the floor has two ranks")
        if case.collective == "barrier" and self._variant == "ideal":
            self._protocol = "flag"
        elif case.collective == "all_reduce" and case.dtype == "f32":
            self._protocol = self._variant
        else:
            raise CaseUnsupported("the floor is for all_reduce of float32, and barrier")
        self._case = case
        self.verify()
        seconds = self._program.ask(
            f"run {self._protocol} {self._segments()[-1]} {self._bytes} 1 5"
        )
        return float(min(seconds["seconds"]))

    @property
    def _bytes(self) -> int:
        assert self._case is not None
        return self._case.actual_bytes

    def _segments(self) -> tuple[int, ...]:
        """Segment sizes that differ for this buffer: a buffer below one segment knows one only."""
        if not self._protocol.startswith("staged"):
            return SEGMENTS_KIB[-1:]
        largest = next((k for k in SEGMENTS_KIB if k * 1024 >= self._bytes), SEGMENTS_KIB[-1])
        return tuple(k for k in SEGMENTS_KIB if k <= largest)

    def run(self, inner: int, batches: int) -> list[float]:
        """Every segment size gets its share of the batches; the one with the best median counts."""
        segments = self._segments()
        share = max(3, batches // len(segments)) if batches >= 3 else 1
        answers = [
            self._program.ask(f"run {self._protocol} {kib} {self._bytes} {inner} {share}")[
                "seconds"
            ]
            for kib in segments
        ]
        return min(answers, key=median)

    def verify(self) -> None:
        for kib in self._segments():
            wrong = self._program.ask(f"check {self._protocol} {kib} {self._bytes}")["mismatches"]
            if wrong:
                raise GroupFailed(f"{self._protocol} computed {wrong} wrong elements")

    def release(self) -> None:
        """Buffers belong to the program and stay."""

    def stop(self) -> None:
        """The program is stopped once, by its owner."""
