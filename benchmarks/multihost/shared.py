# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this benchmark has from elsewhere: from that of the collectives, and hosts from the tests.

A benchmark is a script, and a script finds the modules of its own folder only. This is the one
place that reaches out of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))
sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "multiprocess"))

from cases import KIB, MIB, Case, parse_size, size_name
from groups import CaseUnsupported, GroupFailed, WorkerGroup
from libraries import LIBRARIES, Library, LibraryAbsent, is_oversubscribed

from tests.multihost.hosts import HEADER_CAP, MTU, Host, network
from tests.multihost.namespaces import why_not
from tests.multihost.placement import run_ranks_on

__all__ = [
    "HEADER_CAP",
    "KIB",
    "LIBRARIES",
    "MIB",
    "MTU",
    "Case",
    "CaseUnsupported",
    "GroupFailed",
    "Host",
    "Library",
    "LibraryAbsent",
    "WorkerGroup",
    "is_oversubscribed",
    "network",
    "parse_size",
    "run_ranks_on",
    "size_name",
    "why_not",
]
