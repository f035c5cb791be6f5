# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the soak prints: a line per round, and a table at the end."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.soak.over_hosts.faults import KINDS
from tests.soak.usage import MIB, Usage


@dataclass(frozen=True)
class Round:
    """What came of one round.

    Attributes:
        number: of the round.
        kind: of the fault.
        words: what happened.
        errors: ranks that got an error.
        known_s: seconds from the fault until the last of them had it; None without errors.
        calls: collectives of all ranks.
        moved_bytes: of their inputs.
    """

    number: int
    kind: str
    words: str
    errors: int
    known_s: float | None
    calls: int
    moved_bytes: int


class Report:
    """Prints as the soak goes on, and keeps what the summary is made of."""

    def __init__(self, seconds: float) -> None:
        self._begin, self._seconds = time.monotonic(), seconds
        self._rounds: list[Round] = []
        self._most: dict[str, int] = {}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def add(self, round_: Round) -> None:
        self._rounds.append(round_)
        share = min(1.0, self.elapsed_s / self._seconds) if self._seconds else 1.0
        bar = "█" * round(10 * share)
        outcome = (
            f"all results right, {round_.calls} collectives on {round_.moved_bytes / MIB:.0f} MiB"
            if round_.known_s is None
            else f"{round_.errors} ranks got an error, the last after {round_.known_s:.2f} s"
        )
        progress = f"{bar:░<10} {self.elapsed_s / 60:5.1f} min  #{round_.number}"
        print(f"{progress} {round_.words}: {outcome}", flush=True)

    def hold(self, usages: Iterable[tuple[int, Usage]]) -> None:
        """Print what ranks hold between two groups."""
        words = ", ".join(
            f"{rank}: {usage.private_bytes / MIB:.0f} MiB {usage.descriptors} fds"
            f" {usage.threads} threads"
            for rank, usage in usages
        )
        print(f"{'':24}without a group, ranks hold  {words}", flush=True)

    def summary(self) -> str:
        """The table of faults."""
        by_kind: dict[str, list[Round]] = defaultdict(list)
        for round_ in self._rounds:
            by_kind[round_.kind].append(round_)
        lines = [
            "",
            "                                 times   seconds until the last rank had its error",
            "fault                       right  error       median   largest",
        ]
        for kind in KINDS:
            rounds = by_kind.get(kind)
            if rounds is None:
                continue
            known = [each.known_s for each in rounds if each.known_s is not None]
            seconds = (
                f"{statistics.median(known):12.2f}  {max(known):8.2f}"
                if known
                else f"{'-':>12}  {'-':>8}"
            )
            lines.append(f"{kind:<26} {len(rounds) - len(known):6} {len(known):6} {seconds}")
        calls = sum(each.calls for each in self._rounds)
        moved = sum(each.moved_bytes for each in self._rounds)
        lines.append("")
        lines.append(
            f"{len(self._rounds)} rounds in {self.elapsed_s / 60:.1f} min, {calls} collectives of"
            f" all ranks on {moved / 2**30:.1f} GiB"
        )
        return "\n".join(lines)
