# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun --trace FILE`: the ranks record, afterwards their traces become one.

The merging is `smddptrace merge`, run as the command it is: the launcher imports no training code.
Source: our choice; docs/tracing.md.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from smdistributed._common.trace_path import rank_path

__all__ = ["merge_traces", "remove_old_traces"]

# -P: no module of the folder in which the job was started is taken for one of the library's.
_MERGE = (sys.executable, "-P", "-m", "smdistributed.dataparallel.trace", "merge")


def remove_old_traces(path: str, np: int) -> None:
    """Removes what this job will write, so that afterwards nothing older is taken for it."""
    for old in [Path(path), *(rank_path(path, rank) for rank in range(np))]:
        with contextlib.suppress(OSError):
            old.unlink()


def merge_traces(path: str, np: int, say: Callable[[str], None]) -> None:
    """Merges the traces of ranks 0 to `np` - 1 into `path`, and says how that went."""
    files = [str(file) for rank in range(np) if (file := rank_path(path, rank)).exists()]
    if not files:
        say(
            f"--trace {path}: no rank has written a trace; expected a script that imports "
            "smdistributed.dataparallel.torch.torch_smddp, or calls init() of "
            "smdistributed.dataparallel.tensorflow, and is not killed. See docs/tracing.md."
        )
        return
    done = subprocess.run(
        [*_MERGE, "-o", path, "--", *files],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        say(line)
