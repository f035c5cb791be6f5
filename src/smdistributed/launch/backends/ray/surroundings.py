# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What processes of an actor have of its variables: not what Ray sets for its own workers."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["without_ray"]

_OF_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONPATH", "SPT_NOENV")


def without_ray(environ: Mapping[str, str], *, has_gpus: bool) -> dict[str, str]:
    """The variables of a process that an actor starts.

    Args:
        environ: of the actor.
        has_gpus: Ray has given it some; else it sees none, as they are others'.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("RAY_") and name not in _OF_RAY
    }
    return kept if has_gpus else {**kept, "CUDA_VISIBLE_DEVICES": ""}
