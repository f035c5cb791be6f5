# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks hand to the program that compares them; without TensorFlow."""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["Trained"]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What three steps have made.

    Attributes:
        losses: the mean over microbatches, for each step.
        names: of all variables, in the order of the whole model.
        values: after the last step, by place in `names`; of a rank its own.
        moved: by place, how far its elements have moved at most; in one process.
        held_bytes: of variables, on this rank.
        first_call_s: processor time of this process for the first step.
    """

    losses: list[float]
    names: list[str]
    values: dict[int, np.ndarray]
    moved: dict[int, float]
    held_bytes: int
    first_call_s: float
