# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this benchmark has from that of the collectives.

A benchmark is a script, and a script finds the modules of its own folder only. This is the one
place that reaches out of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))

import child_processes
import environment
import list_options
import page_parts
import result_files
from adapters.floor import SEGMENTS_KIB, FloorProgram
from figures import percentile
from libraries import LibraryAbsent

__all__ = [
    "SEGMENTS_KIB",
    "FloorProgram",
    "LibraryAbsent",
    "child_processes",
    "environment",
    "list_options",
    "page_parts",
    "percentile",
    "result_files",
]
