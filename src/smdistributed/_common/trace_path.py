# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where a rank's trace lies: part of the meaning of `SMDDP_TRACE`.

The launcher merges files that the ranks have written, so both must form the names alike.
Source: dataparallel specification, section 9.
"""

from pathlib import Path

__all__ = ["rank_path"]


def rank_path(path: str | Path, rank: int) -> Path:
    """Returns `path` with the rank before its suffix: `runs/trace.json`, 3: `runs/trace.3.json`."""
    path = Path(path)
    return path.with_name(f"{path.stem}.{rank}{path.suffix}")
