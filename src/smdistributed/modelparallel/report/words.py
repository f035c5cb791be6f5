# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Figures and tables as people read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from smdistributed.modelparallel.report.costs import OUTSIDE_ROW

__all__ = ["Words", "aligned", "bytes_text", "seconds_text", "words_of"]


@dataclasses.dataclass(frozen=True)
class Words:
    """How a report speaks to users of one framework.

    Attributes:
        part: what is in a partition, as a whole.
        outside: the row of what is in none.
        memory: what is told of memory.
        by_hand, automatic: how to move something.
        divide, cannot_move: what to do where no move helps.
    """

    part: str
    outside: str
    memory: str
    by_hand: str
    automatic: str
    divide: str
    cannot_move: str

    def path(self, path: str) -> str:
        """Of a row, as it is shown."""
        return self.outside if path == OUTSIDE_ROW else path


_WORDS = {
    "torch": Words(
        part="module",
        outside=OUTSIDE_ROW,
        memory="peak memory",
        by_hand="With smp.set_partition(module, partition), or in the partition file.",
        automatic=(
            "The automatic partition has taken other times for true: pass"
            " trace_execution_times=True to smp.DistributedModel, or place them by hand"
            " (auto_partition: False)."
        ),
        divide=" Make it of several modules in a row, or use fewer partitions.",
        cannot_move=(
            " It cannot move: it is the root, or shares parameters with modules elsewhere. What it"
            " computes itself could be put into modules of their own; or use fewer partitions."
        ),
    ),
    "tensorflow": Words(
        part="layer",
        outside="(outside of the model)",
        memory="held at most",
        by_hand=(
            "Call them in the model's call() in another context: with smp.partition(partition)."
        ),
        automatic=(
            "The automatic partition counts operations and variables, and does not know times:"
            ' set "auto_partition": False and "default_partition": 0, and call layers in contexts,'
            " with smp.partition(partition)."
        ),
        divide=' Make it of several layers in a row, or use fewer "partitions".',
        cannot_move=(
            " It cannot move alone: it is outside of the model, or shares variables with another"
            ' layer. Do less there, or use fewer "partitions".'
        ),
    ),
}


def words_of(framework: str) -> Words:
    """Of "torch" or "tensorflow"."""
    return _WORDS[framework]


def seconds_text(seconds: float) -> str:
    """Three digits: `12.3 ms`, `1.23 s`."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def bytes_text(num_bytes: float | None) -> str:
    """Three digits: `12.3 MB`; a dash if nobody knows."""
    if num_bytes is None:
        return "-"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= 0.9995 * unit:
            return f"{num_bytes / unit:.3g} {name}"
    return f"{num_bytes:.0f} B"


def aligned(table: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Lines of a table: figures to the right, the last `words` columns to the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    first_words = len(widths) - words
    return [
        "  ".join(
            cell.rjust(width) if number < first_words else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
