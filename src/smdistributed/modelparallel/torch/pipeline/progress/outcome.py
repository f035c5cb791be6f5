# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What every rank knows when a step has ended well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Outcome"]


class Outcome(NamedTuple):
    """Of a step, on every rank.

    Attributes:
        results: by microbatch, what the leader's bodies returned.
        weights: of the microbatches in a mean over the batch; None: all the same.
        had_backward: whether any microbatch went back.
    """

    results: list[Any]
    weights: Sequence[float] | None
    had_backward: bool
