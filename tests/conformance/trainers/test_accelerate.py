# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Accelerate trains over smddp: found by itself in a SageMaker job, or given a process group.

Source: dataparallel specification, sections 3.1 (detection), 4.6 (CPU) and 12 (statements 2, 10).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.trainers.one_process import train_plainly
from tests.conformance.trainers.runs import (
    RUN_TIMEOUT_S,
    Run,
    expect_equal_ranks,
    expect_equal_to_one_process,
    expect_learning,
    expect_smddp,
    smddprun,
    train,
)
from tests.packages import require

require("accelerate")
pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S)

SCRIPT = "train_accelerate.py"
# What Accelerate's own SageMaker launcher sets.
DETECTED = ["-x", "ACCELERATE_USE_SAGEMAKER=true"]


def expect_all_is_well(run: Run) -> None:
    expect_smddp(run)
    expect_learning(run.losses)
    expect_equal_ranks(run)
    expect_equal_to_one_process(run.losses, run.weights, *train_plainly())
    for seen in run.ranks:
        assert seen["wrapped_in"] == "DistributedDataParallel"
        assert seen["num_seen"] == 101  # every image counts once, though the shares differ in size
        assert seen["num_right"] == run.ranks[0]["num_right"] > 60


@pytest.mark.fresh
def test_plain_accelerator_detects_smddp(tmp_path: Path) -> None:
    run = train(smddprun("--cpu", *DETECTED), SCRIPT, tmp_path, "detected")
    expect_all_is_well(run)
    # Accelerate's word for several processes that its SageMaker detection started.
    assert {seen["distributed_type"] for seen in run.ranks} == {"MULTI_GPU"}
    assert {seen["device"] for seen in run.ranks} == {"cpu"}


def test_cpu_accelerator_uses_the_process_group_that_it_finds(tmp_path: Path) -> None:
    run = train(smddprun(), SCRIPT, tmp_path, "cpu")
    expect_all_is_well(run)
    assert {seen["distributed_type"] for seen in run.ranks} == {"MULTI_CPU"}
