# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this benchmark has from that of the collectives.

A benchmark is a script, and a script finds the modules of its own folder only. This is the one
place that reaches out of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "collectives"))

import environment
import list_options
import page_parts
import result_files

__all__ = ["environment", "list_options", "page_parts", "result_files"]
