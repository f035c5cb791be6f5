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

    def staged_seconds(self, num_bytes: int, batches: int) -> float:
        """Seconds of one sum by ``staged`` in one piece, with the best segment size."""
        return min(
            median(self.ask(f"run staged {kib} {num_bytes} 1 {batches}")["seconds"])
            for kib in SEGMENTS_KIB
        )

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

    def prepare(self, case: Case) -> float:
        protocol = self._protocol(case)
        self.verify(case)
        kib = self._segments(case)[-1]
        seconds = self._program.ask(f"run {protocol} {kib} {case.actual_bytes} 1 5")
        return float(min(seconds["seconds"]))

    def _protocol(self, case: Case) -> str:
        """The program's word for this protocol in this case. Raises ``CaseUnsupported``."""
        if case.ranks != 2:
            raise CaseUnsupported("the floor has two ranks")
        if case.collective == "barrier" and self._variant == "ideal":
            return "flag"
        if case.collective == "all_reduce" and case.dtype == "f32":
            return self._variant
        raise CaseUnsupported("the floor is for all_reduce of float32, and barrier")

    def _segments(self, case: Case) -> tuple[int, ...]:
        """Segment sizes that differ for this buffer: a buffer below one segment knows one only."""
        if not self._variant.startswith("staged"):
            return SEGMENTS_KIB[-1:]
        enough = (kib for kib in SEGMENTS_KIB if kib * 1024 >= case.actual_bytes)
        largest = next(enough, SEGMENTS_KIB[-1])
        return tuple(kib for kib in SEGMENTS_KIB if kib <= largest)

    def run(self, case: Case, inner: int, batches: int) -> list[float]:
        """Every segment size gets its share of the batches; the one with the best median counts."""
        protocol, segments = self._protocol(case), self._segments(case)
        share = max(3, batches // len(segments)) if batches >= 3 else 1
        answers = [
            self._program.ask(f"run {protocol} {kib} {case.actual_bytes} {inner} {share}")[
                "seconds"
            ]
            for kib in segments
        ]
        return min(answers, key=median)

    def verify(self, case: Case) -> None:
        protocol = self._protocol(case)
        for kib in self._segments(case):
            wrong = self._program.ask(f"check {protocol} {kib} {case.actual_bytes}")["mismatches"]
            if wrong:
                raise GroupFailed(f"{protocol} computed {wrong} wrong elements")

    def release(self, case: Case) -> None:
        """Buffers belong to the program and stay."""

    def stop(self) -> None:
        """The program is stopped once, by its owner."""
