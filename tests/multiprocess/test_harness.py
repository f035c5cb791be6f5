# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the harness says of ranks that end in ways in which no rank should."""

from __future__ import annotations

import os

import pytest
from harness import RanksFailed, run_ranks


def _ends(rank: int, world_size: int) -> None:
    if rank == 1:
        os._exit(0)


def test_a_rank_that_ends_before_its_function_has_failed() -> None:
    """Until 2026 it had not: its status is 0, and most functions return None."""
    with pytest.raises(RanksFailed, match="rank 1 ended with exit code 0, before its function"):
        run_ranks(_ends, 2)
