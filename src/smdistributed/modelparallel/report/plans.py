# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smp.plan()` returns: reports of pipelines that are not there, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from smdistributed.modelparallel.report.document import Report
from smdistributed.modelparallel.report.words import aligned, bytes_text, seconds_text, words_of

__all__ = ["Plan", "several"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one model would do on several numbers of ranks. `print` it.

    Attributes:
        reports: one for each number of ranks and of microbatches, in the order that was asked for.
    """

    reports: tuple[Report, ...]

    def __len__(self) -> int:
        return len(self.reports)

    def __getitem__(self, index: int) -> Report:
        return self.reports[index]

    def __str__(self) -> str:
        if len(self.reports) == 1:
            return str(self.reports[0])
        memory = words_of(self.reports[0].settings.framework).memory
        header = ["", "ranks", "microbatches", "step", "bubble", memory, "sent"]
        table = [header]
        for index, report in enumerate(self.reports):
            expected = report.expected
            table.append(
                [
                    f"[{index}]",
                    str(report.settings.partitions),
                    str(report.settings.microbatches),
                    seconds_text(expected.step_s),
                    f"{min(expected.bubble):.1%}",
                    bytes_text(max(expected.peak_bytes, default=None)),
                    bytes_text(sum(expected.sent_bytes.values())),
                ]
            )
        lines = aligned(table)
        return "\n".join(
            [*lines, "", "The bubble is the busiest rank's, the memory the fullest's."]
        )


def several(name: str, numbers: int | Sequence[int]) -> list[int]:
    """One or several numbers as a list.

    Raises:
        ValueError: they are no positive integers.
    """
    found: list[Any] = list(numbers) if isinstance(numbers, Sequence) else [numbers]
    if not found or any(not isinstance(each, int) or each < 1 for each in found):
        raise ValueError(
            f"{name} is {numbers!r}; expected a positive integer, or several. Give at least one."
        )
    return found
