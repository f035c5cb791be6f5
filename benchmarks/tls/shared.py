# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this benchmark has from elsewhere: from that of the collectives, and hosts from the tests.

A benchmark is a script, and a script finds the modules of its own folder only. This is the one
place that reaches out of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "collectives"))
sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "multiprocess"))

import environment
import list_options
import result_files
from job_certificates import TlsFiles, make_authority, make_files

from tests.multihost.hosts import network
from tests.multihost.namespaces import why_not
from tests.multihost.placement import run_ranks_on

__all__ = [
    "TlsFiles",
    "environment",
    "list_options",
    "make_authority",
    "make_files",
    "network",
    "result_files",
    "run_ranks_on",
    "why_not",
]
