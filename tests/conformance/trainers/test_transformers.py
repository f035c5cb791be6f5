# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An unmodified Hugging Face `Trainer` finds smddp, trains with it, evaluates, saves and resumes.

Source: dataparallel specification, sections 3.1 (detection), 4.6 (CPU) and 12 (statements 2, 10).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conformance.trainers.runs import (
    NUM_PROCESSES,
    RUN_TIMEOUT_S,
    Run,
    expect_equal_ranks,
    expect_equal_to_one_process,
    expect_learning,
    expect_smddp,
    python,
    smddprun,
    train,
)
from tests.packages import require

require("transformers")
pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)

SCRIPT = "train_transformers.py"
NUM_STEPS = 32
JOINED_BATCH_SIZE = 16
LAUNCHER = smddprun("--cpu")
SHARE = str(JOINED_BATCH_SIZE // NUM_PROCESSES)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("together")
    return train(LAUNCHER, SCRIPT, folder, SHARE, str(NUM_STEPS))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("alone")
    return train(python(), SCRIPT, folder, str(JOINED_BATCH_SIZE), str(NUM_STEPS))


def test_trainer_detects_data_parallel_and_trains_over_smddp_on_the_cpu(together: Run) -> None:
    expect_smddp(together)
    for rank, seen in enumerate(together.ranks):
        assert seen["parallel_mode"] == "sagemaker_data_parallel"
        assert seen["device"] == "cpu"
        assert seen["wrapped_in"] == "DistributedDataParallel"
        assert seen["local_rank"] == str(rank)


def test_without_a_launcher_the_same_script_is_an_ordinary_one(alone: Run) -> None:
    (seen,) = alone.ranks
    assert seen["parallel_mode"] == "not_parallel"
    assert seen["backend"] is None
    assert seen["wrapped_in"] == "ViTForImageClassification"


def test_loss_falls_and_the_log_says_so(together: Run) -> None:
    assert len(together.losses) == NUM_STEPS
    expect_learning(together.losses)
    logged = together.ranks[0]["logged_losses"]
    assert logged == pytest.approx(together.losses, abs=0.6e-4)  # the log has four decimals


def test_ranks_end_with_bitwise_equal_weights(together: Run) -> None:
    expect_equal_ranks(together)


def test_training_equals_one_process_on_the_joined_batch(together: Run, alone: Run) -> None:
    expect_equal_to_one_process(together.losses, together.weights, alone.losses, alone.weights)


def test_every_rank_gets_the_evaluation_of_all_images(together: Run, alone: Run) -> None:
    assert alone.ranks[0]["eval_count"] == 101  # odd: the last batch is shared out unevenly
    for seen in together.ranks:
        assert seen["eval_count"] == 101
        assert seen["eval_accuracy"] == alone.ranks[0]["eval_accuracy"]


def test_saved_model_holds_the_final_weights_under_plain_names(together: Run) -> None:
    from transformers import ViTForImageClassification

    model = ViTForImageClassification.from_pretrained(together.folder / "saved")
    saved = model.state_dict()
    assert saved.keys() == together.weights.keys()  # no prefix of DistributedDataParallel
    assert all(torch.equal(saved[name], tensor) for name, tensor in together.weights.items())


def test_training_resumed_from_a_checkpoint_ends_at_the_same_bits(
    together: Run, tmp_path: Path
) -> None:
    checkpoint = together.folder / "trainer" / f"checkpoint-{NUM_STEPS // 2}"
    resumed = train(LAUNCHER, SCRIPT, tmp_path, SHARE, str(NUM_STEPS), str(checkpoint))
    expect_equal_ranks(resumed)
    assert resumed.losses == together.losses[NUM_STEPS // 2 :]
    assert resumed.ranks[0]["weights_sha256"] == together.ranks[0]["weights_sha256"]
