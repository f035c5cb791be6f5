# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are whole or absent, whenever the power fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(state: dict[str, Any], path: Path) -> None:
    """Write ``state`` to ``path`` such that a reader finds the old file or the new one, whole.

    The new one is written beside the old one, forced to the disk, and given the name in one step.
    If that fails, because the disk is full for example, nothing is left of it. Call it on one rank.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name is in the folder, and that is what has changed last
    finally:
        os.close(folder)


def load(path: Path, device: torch.device, expected: dict[str, Any]) -> dict[str, Any] | None:
    """The state in ``path`` with its tensors on ``device``, or None if there is no such file yet.

    ``expected`` are the options that must be those of the run that wrote it: with others the
    training would go on, but not as that run would have.

    Raises ValueError, naming the options, when they are not.
    """
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    different = [
        f"{name} {state['options'].get(name)!r} there, {value!r} here"
        for name, value in expected.items()
        if state["options"].get(name) != value
    ]
    if different:
        raise ValueError(
            f"{path} is the checkpoint of a different run: {'; '.join(different)}; expected the "
            "same options to go on with it. Pass those, or name another file to start afresh."
        )
    return state
