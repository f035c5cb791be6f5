# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this benchmark has from the one of the collectives, in the folder beside it.

A benchmark is a script, and a script finds the modules of its own folder only. This is the one
place that reaches into another.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))

import environment
import result_files
from core_state import main_tag

COLLECTIVES_FOLDER = Path(environment.__file__).parent

__all__ = ["COLLECTIVES_FOLDER", "environment", "main_tag", "result_files"]
