# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A rank raises, dies, leaves or is interrupted in a step: what all ranks are told.

Those of its pipeline, and the other replica, which waits for gradients in an all-reduce.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled, soon_s
from tensorflow_harness import run_tensorflow_ranks

RANKS = Path(__file__).with_name("replica_fault_ranks.py")
NUM_RANKS = 4
VICTIM = 1
SOON_S = soon_s()
DEADLINE_S = 90.0
KERASES = [
    pytest.param("0", id="keras-3"),
    pytest.param("1", id="tf-keras", marks=pytest.mark.slow),
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _told(survivors: Sequence[int], keras: str, *faults: tuple[str, bool]) -> list[list[Any]]:
    """By fault, what the ranks were told; soon."""
    before = _shared_files()
    outcomes = run_tensorflow_ranks(
        f"{RANKS}:run_faults",
        NUM_RANKS,
        faults,
        env={"SMDDP_TIMEOUT_SECONDS": str(scaled(60.0)), "TF_USE_LEGACY_KERAS": keras},
        check=False,
        deadline_s=DEADLINE_S,
    )
    assert _shared_files() <= before, "files are left behind"
    by_rank = []
    for rank in survivors:
        assert outcomes[rank].ok, outcomes[rank]
        by_rank.append(outcomes[rank].value)
    by_fault = [list(each) for each in zip(*by_rank, strict=True)]
    for told in by_fault:
        assert all(each["after_s"] < SOON_S for each in told), told
    return by_fault


def _shared_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "smd" in name}


def _class_and_text(told: Any) -> str:
    return f"{told['type_name']}: {told['text']}"


@pytest.mark.parametrize("keras", KERASES)
def test_faults_after_which_all_start_anew(keras: str) -> None:
    everyone = range(NUM_RANKS)
    faults = ("raised", False), ("raised", True), ("interrupted", True)
    *raised, interrupted = _told(everyone, keras, *faults)
    line = "forward of dense_1 ... fragile_1, microbatch 2: "
    for told in raised:
        for rank, each in enumerate(map(_class_and_text, told)):
            assert "rank 1 (partition 1, host" in each, told
            assert line in each, told
            assert "Input is not invertible" in each, told
            if rank in (2, 3):
                assert "the step failed on the replica of ranks 0, 1" in each, told
    for rank, each in enumerate(map(_class_and_text, interrupted)):
        assert "KeyboardInterrupt" in each or "interrupted by its user" in each, (rank, each)
    assert "StepAborted: rank 0 (partition 0, host" in interrupted[1]["text"], interrupted


@pytest.mark.parametrize("keras", KERASES)
def test_a_rank_is_killed(keras: str) -> None:
    (told,) = _told((0, 2, 3), keras, ("killed", True))
    for each in map(_class_and_text, told):
        assert "SMDDPPeerLost" in each, told
        assert "rank 1 (host" in each, told
