# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds, in which the columns of a benchmark take turns: their order, and figures of the turns."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Nearest-rank percentile of an ascending, non-empty sequence."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]
