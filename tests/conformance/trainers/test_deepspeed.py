# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed trains over smddp on the CPU, with every stage of ZeRO.

Source: dataparallel specification, sections 4.4 and 12 (statement 2).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.trainers.one_process import train_plainly
from tests.conformance.trainers.runs import (
    RUN_TIMEOUT_S,
    expect_equal_ranks,
    expect_equal_to_one_process,
    expect_learning,
    expect_smddp,
    read,
    run_script,
    smddprun,
)
from tests.packages import require

require("deepspeed")
pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one run left a folder per stage."""
    folder = tmp_path_factory.mktemp("deepspeed")
    run_script(smddprun(), "train_deepspeed.py", folder, variables={"DS_ACCELERATOR": "cpu"})
    return folder


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_stage(stage: int, folder: Path) -> None:
    run = read(folder / f"stage{stage}")
    assert [seen["stage"] for seen in run.ranks] == [stage, stage]
    expect_smddp(run)
    expect_learning(run.losses)
    expect_equal_ranks(run)
    expect_equal_to_one_process(run.losses, run.weights, *train_plainly())
