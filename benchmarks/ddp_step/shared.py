# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this benchmark has from the one of the collectives, in the folder beside it.

A benchmark is a script, and a script finds the modules of its own folder only. This is the one
place that reaches into another. Of modules with one name, ours are found first.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))

from adapters.floor import FloorProgram
from core_state import COMPARABLE_TAGS, CoreProbe, CoreStates, ProbeSample, main_tag
from figures import paired_turns
from libraries import LibraryAbsent
from native_programs import CannotBuild

__all__ = [
    "COMPARABLE_TAGS",
    "CannotBuild",
    "CoreProbe",
    "CoreStates",
    "FloorProgram",
    "LibraryAbsent",
    "ProbeSample",
    "main_tag",
    "paired_turns",
]
