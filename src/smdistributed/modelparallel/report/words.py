# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Figures and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned", "bytes_text", "seconds_text"]


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
