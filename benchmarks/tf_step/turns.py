# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From the times of all ranks to the figures of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from common.rounds import percentile, ratio_figures

# By column, one list for each turn: seconds of its calls.
Turns = Mapping[str, Sequence[Sequence[float]]]


def summarise(turns: Sequence[Sequence[float]]) -> dict[str, float]:
    """Milliseconds over all calls of all turns; the median is that of the turns' medians."""
    ordered = sorted(seconds for turn in turns for seconds in turn)
    return {
        "turns": len(turns),
        "calls": len(ordered),
        "best_ms": round(ordered[0] * 1e3, 5),
        "median_ms": round(median(median(turn) for turn in turns) * 1e3, 5),
        "p10_ms": round(percentile(ordered, 0.10) * 1e3, 5),
        "p90_ms": round(percentile(ordered, 0.90) * 1e3, 5),
    }


def ratios(turns: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> dict[str, float]:
    """How many times as long as the others', from the medians of the turns of one round."""
    return ratio_figures(
        median(turn) / median(other) for turn, other in zip(turns, others, strict=True)
    )
