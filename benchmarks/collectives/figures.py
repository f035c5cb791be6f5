# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From samples to the figures of the report."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from cases import Case
from common.rounds import percentile
from core_state import COMPARABLE_TAGS

Turn = dict[str, Any]


def summarise(case: Case, seconds: Iterable[float], turns: int) -> dict[str, Any]:
    """Times in microseconds and bandwidths in 10^9 bytes/s (of the median) over all samples.

    A sample is one batch: the mean time of its calls on the slowest rank. ``spread`` is
    (p90 - best) / median.
    """
    ordered = sorted(seconds)
    middle = median(ordered)
    algorithm_gbps = case.actual_bytes / middle / 1e9
    p90 = percentile(ordered, 0.90)
    return {
        "turns": turns,
        "samples": len(ordered),
        "best_us": round(ordered[0] * 1e6, 3),
        "median_us": round(middle * 1e6, 3),
        "p90_us": round(p90 * 1e6, 3),
        "p95_us": round(percentile(ordered, 0.95) * 1e6, 3),
        "p99_us": round(percentile(ordered, 0.99) * 1e6, 3),
        "spread": round((p90 - ordered[0]) / middle, 3),
        "algorithm_gbps": float(f"{algorithm_gbps:.4g}"),
        "bus_gbps": float(f"{algorithm_gbps * case.bus_factor:.4g}"),
    }


def paired_turns(
    turns: Iterable[Turn], *columns: Iterable[Turn]
) -> dict[str, list[tuple[Turn, ...]]]:
    """Turns of one round that took place in one core state, by that state.

    Each tuple has a turn of ``turns`` first, then one of each of ``columns``.
    """
    by_round = [{other["round"]: other for other in column} for column in columns]
    pairs: dict[str, list[tuple[Turn, ...]]] = {}
    for turn in turns:
        others = [column.get(turn["round"]) for column in by_round]
        tags = {None if other is None else other["tag"] for other in others} | {turn["tag"]}
        if len(tags) == 1 and turn["tag"] in COMPARABLE_TAGS:
            pairs.setdefault(turn["tag"], []).append((turn, *filter(None, others)))
    return pairs


def paired_ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times as long ``theirs`` takes, per tag, from rounds in which both have that tag.

    ``best`` divides the best times of those rounds; ``median`` is the median over those rounds of
    the ratio of the two medians of the round, so a drift of the machine touches both sides alike.
    """
    return {
        tag: {
            "pairs": len(rounds),
            "best": min(peer["best_us"] for _, peer in rounds)
            / min(turn["best_us"] for turn, _ in rounds),
            "median": median(peer["median_us"] / turn["median_us"] for turn, peer in rounds),
        }
        for tag, rounds in paired_turns(ours["turns"], theirs["turns"]).items()
    }
