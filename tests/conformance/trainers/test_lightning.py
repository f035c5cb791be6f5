# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lightning trains over smddp, by strategy argument and as in the documented sample.

Source: dataparallel specification, sections 4.4 and 12 (statements 1, 2).
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.conformance.trainers.runs import (
    RELATIVE_TOLERANCE,
    RUN_TIMEOUT_S,
    Run,
    expect_equal_ranks,
    expect_equal_to_one_process,
    expect_learning,
    expect_smddp,
    python,
    smddprun,
    torchrun,
    train,
)
from tests.packages import require

require("lightning")
pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)

SCRIPT = "train_lightning.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(python(), SCRIPT, tmp_path_factory.mktemp("alone"), "none")


def expect_all_is_well(run: Run, alone: Run) -> None:
    expect_smddp(run)
    expect_learning(run.losses)
    expect_equal_ranks(run)
    expect_equal_to_one_process(run.losses, run.weights, alone.losses, alone.weights)
    for rank, seen in enumerate(run.ranks):
        assert seen["strategy"] == "DDPStrategy"
        assert seen["global_rank"] == rank
        # Each rank looked at its share of the images; the metric speaks for all of them.
        assert seen["accuracy"] == alone.ranks[0]["accuracy"] > 0.6
        # By `self.log(..., sync_dist=True)`, which averages numbers of samples too: integers.
        mean = statistics.fmean(alone.losses)
        assert seen["train_loss"] == pytest.approx(mean, rel=RELATIVE_TOLERANCE)


def test_strategy_argument_under_smddprun(alone: Run, tmp_path: Path) -> None:
    run = train(smddprun(), SCRIPT, tmp_path, "strategy")
    expect_all_is_well(run, alone)
    assert {seen["environment"] for seen in run.ranks} == {"LightningEnvironment"}


def test_strategy_argument_under_torchrun(alone: Run, tmp_path: Path) -> None:
    run = train(torchrun(), SCRIPT, tmp_path, "strategy")
    expect_all_is_well(run, alone)
    assert {seen["environment"] for seen in run.ranks} == {"TorchElasticEnvironment"}


def test_documented_sample(alone: Run, tmp_path: Path) -> None:
    run = train(smddprun("-x", "SM_NUM_GPUS=2"), SCRIPT, tmp_path, "sample")
    expect_all_is_well(run, alone)
    assert {seen["environment"] for seen in run.ranks} == {"LightningEnvironment"}
