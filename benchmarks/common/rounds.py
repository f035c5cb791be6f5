# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds, in which the columns of a benchmark take turns: their order, and figures of the turns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeVar

_Column = TypeVar("_Column")


def in_turn(columns: Sequence[_Column], number: int) -> list[_Column]:
    """All columns, in the order of round ``number``, which turns by one each round.

    So each column comes first, last and behind each other one equally often.
    """
    shift = number % max(1, len(columns))
    return [*columns[shift:], *columns[:shift]]


def slowest(seconds_by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each step or call, as long as its slowest rank: training goes in step.

    The rule is the same for columns that do not communicate, so that a disturbance of one rank
    touches them as it touches the others.
    """
    return [max(times) for times in zip(*seconds_by_rank, strict=True)]


def ratio_figures(ratios: Iterable[float]) -> dict[str, float]:
    """Median, p10 and p90 of the ratios of turns that followed one another, one of each round."""
    ordered = sorted(ratios)
    return {
        "median": round(median(ordered), 4),
        "p10": round(percentile(ordered, 0.10), 4),
        "p90": round(percentile(ordered, 0.90), 4),
    }


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Nearest-rank percentile of an ascending, non-empty sequence."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]
