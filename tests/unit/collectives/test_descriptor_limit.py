# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How many files a process may open once the engine is there."""

from __future__ import annotations

import resource
import subprocess
import sys

# Of the engine, which does not go further: programs may close one by one what they inherit.
MOST = 65536

PROGRAM = """
import resource

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

import smdistributed.collectives

print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_engine_may_open_as_many_files_as_the_system_allows() -> None:
    # In 2.0.0 before its release the limit of 1,024 that is usual for programs that use select()
    # stayed, and groups of many ranks met it.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(min(hard, MOST)), str(hard)]
