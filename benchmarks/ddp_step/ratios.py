# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From turns to the figures of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from common.rounds import percentile, ratio_figures
from shared import paired_turns

Turn = dict[str, Any]


def summarise(turns: Sequence[Turn]) -> dict[str, float]:
    """Figures of the turns of one core state, in milliseconds.

    `best` is the fastest step; the others are taken over the turns' medians. `spread` is
    (p90 - p10) / median. `cpu_ms` is processor time of one step on one rank, median of the turns.
    """
    ordered = sorted(turn["median_ms"] for turn in turns)
    middle = median(ordered)
    p10, p90 = percentile(ordered, 0.10), percentile(ordered, 0.90)
    return {
        "turns": len(turns),
        "best_ms": min(turn["best_ms"] for turn in turns),
        "median_ms": round(middle, 5),
        "p90_ms": p90,
        "cpu_ms": round(median(turn["cpu_ms"] for turn in turns), 5),
        "spread": round((p90 - p10) / middle, 3),
    }


def paired(turns: Iterable[Turn], references: Iterable[Turn]) -> dict[str, dict[str, float]]:
    """How many times as long a step takes as the reference's, per core state.

    Pairs are turns of one round in one core state. `best` divides the best steps of those rounds;
    `median`, `p10` and `p90` are over the rounds' ratios of medians, so that a drift of the
    machine touches both sides alike. `cpu` is the median ratio of processor times.
    """
    found = {}
    for tag, rounds in paired_turns(turns, references).items():
        found[tag] = {
            "pairs": len(rounds),
            "best": round(
                min(turn["best_ms"] for turn, _ in rounds)
                / min(other["best_ms"] for _, other in rounds),
                4,
            ),
            **ratio_figures(turn["median_ms"] / other["median_ms"] for turn, other in rounds),
            "cpu": round(median(turn["cpu_ms"] / other["cpu_ms"] for turn, other in rounds), 4),
        }
    return found
