# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks have done, as a report shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from smdistributed.modelparallel.report.records import Memory
from smdistributed.modelparallel.report.timeline import Timeline

__all__ = ["Measured"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the ranks did.

    Attributes:
        num_steps: that tell of times.
        num_others: that do something else, such as validations.
        step_s: median, from the leader's beginning to its end.
        busy_s, bubble: by partition, medians.
        memory: by partition; None where none was looked at.
        sent: by `(source, dest)` as "0-1" and kind of message: how many, and their bytes, of the
            step of median length.
        timeline: of that step.
        leader_pieces: of a microbatch's forward on partition 0, most often.
        step: name of the step function; empty if there is one alone.
    """

    num_steps: int
    num_others: int
    step_s: float
    busy_s: tuple[float, ...]
    bubble: tuple[float, ...]
    memory: tuple[Memory | None, ...]
    sent: Mapping[str, Mapping[str, tuple[int, int]]]
    timeline: Timeline
    leader_pieces: int
    step: str = ""
