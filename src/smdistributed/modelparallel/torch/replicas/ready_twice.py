# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an error of torch's DDP means where a step has called `model.backward()` once too often."""

from __future__ import annotations

from smdistributed._common.error_text import error_text

__all__ = ["explain_ready_twice"]

_READY_TWICE = "mark a variable ready only once"


def explain_ready_twice(error: Exception) -> None:
    """Adds to an error of torch's DDP, which speaks of other causes, what has come to pass here."""
    if _READY_TWICE in error_text(error):
        error.add_note(
            "\nHere it means that gradients were being averaged over replicas already:"
            " model.backward() came once more than in the steps before, or once more after it had"
            " failed. Call it equally often in each microbatch and let its errors end the step, or"
            " make the model with overlapping_allreduce=False, which averages after the step."
        )
