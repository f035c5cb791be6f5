# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks with fewer batches than others: the log says who waits for whom, and after which step."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_speed import scaled
from tensorflow_harness import run_tensorflow_ranks

RANKS = Path(__file__).with_name("uneven_ranks.py")
DEADLINE_S = 120.0
ADVICE = (
    "Give all ranks equally many: the same list of files in the same (sorted) order, and"
    " drop_remainder=True."
)


@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize(
    "keras",
    [pytest.param("0", id="keras-3"), pytest.param("1", id="tf-keras", marks=pytest.mark.slow)],
)
def test_ranks_that_are_late_and_ranks_that_have_left(keras: str) -> None:
    stall_s = scaled(1.0)
    by_rank = run_tensorflow_ranks(
        f"{RANKS}:run_late",
        4,
        2.5 * stall_s + 1.0,
        env={"SMDDP_STALL_SECONDS": str(stall_s), "TF_USE_LEGACY_KERAS": keras},
        deadline_s=DEADLINE_S,
    )
    warned, errors = zip(*by_rank, strict=True)
    late_replica, late_ranks = zip(*warned, strict=True)
    (said,) = late_replica[0]
    assert said.startswith("rank 0 (host "), said
    assert "has run 4 steps, and no other for" in said
    assert "; rank 2 (host " in said
    assert "which has the same partition of another replica, has run 3." in said
    assert ADVICE in said
    assert not any(late_replica[1:]), late_replica
    for rank in (0, 2):
        (said,) = late_ranks[rank]
        assert said.startswith(f"rank {rank} (partition 0, host "), said
        assert "in step 5, as all have run 4, for what forward of " in said
        assert f"Of rank {rank + 1} (partition 1, host " in said
        assert ADVICE in said
        assert not late_ranks[rank + 1]
        assert "left the group" in errors[rank], errors
        assert "All ranks had run 5 steps." in errors[rank]
        assert ADVICE.rstrip(".") in errors[rank]
