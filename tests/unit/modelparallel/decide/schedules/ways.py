# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ways of a microbatch through ranks, and what a schedule makes of them, as text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from smdistributed.modelparallel.decide.schedules.schedule import Schedule
from smdistributed.modelparallel.decide.schedules.simulation import Visit, predict

_times = st.floats(0.01, 10.0)
_visits = st.builds(Visit, st.integers(0, 3), _times, _times, st.integers(0, 1000))

ways = st.lists(_visits, min_size=1, max_size=6)


def chain(ranks: int) -> list[Visit]:
    """Equal stages: a unit of time for each pass, 10 bytes kept."""
    return [Visit(rank, 1.0, 1.0, 10) for rank in range(ranks)]


def table(schedule: Schedule, way: Sequence[Visit]) -> list[str]:
    """By rank, its tasks in order."""
    predicted = predict(schedule, way)
    return [" ".join(predicted.order(rank)) for rank in predicted.runs]
