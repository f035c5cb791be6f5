# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer's own model parallel branch, unmodified: train, evaluate, save, resume.

Compared with the same Trainer in one process without model parallelism, on the joined batches.
Source: modelparallel specification, section 9.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor

from smdistributed.launch.environment import CPU_ONLY
from tests.packages import require

require("transformers")

RANKS = str(Path(__file__).with_name("huggingface_ranks.py"))
BATCH_SIZE = 16
DEADLINE_S = 240.0  # transformers takes seconds to import, on each rank

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)

Result = dict[str, Any]


def _model_parallel(ranks: int, parameters: dict[str, Any], folder: Path) -> list[Result]:
    environment = {
        **CPU_ONLY,
        "HF_HUB_OFFLINE": "1",
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled": true}',
        "SM_HP_MP_PARAMETERS": json.dumps(parameters),
    }
    return run_ranks(
        f"{RANKS}:model_parallel",
        ranks,
        folder,
        BATCH_SIZE,
        env=environment,
        deadline_s=DEADLINE_S,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def pipeline(saved: Path) -> list[Result]:
    """By rank, of two partitions."""
    return _model_parallel(2, {"partitions": 2, "microbatches": 2}, saved)


@pytest.fixture(scope="module")
def plain(pipeline: list[Result], saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """In one process; it also reads what the two have saved."""
    folder = tmp_path_factory.mktemp("plain")
    (found,) = run_ranks(
        f"{RANKS}:plain",
        1,
        folder,
        saved,
        BATCH_SIZE,
        env={"HF_HUB_OFFLINE": "1"},
        deadline_s=DEADLINE_S,
    )
    return found


def _expect_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _expect_same_training(found: Result, expected: Result) -> None:
    """But for rounding, which Adam enlarges where a gradient is next to nothing."""
    for what in ("losses", "norms", "evaluations", "rates"):
        torch.testing.assert_close(
            torch.tensor(found[what], dtype=torch.float64),
            torch.tensor(expected[what], dtype=torch.float64),
            rtol=1e-4,
            atol=1e-7,
        )
    torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found["predictions"], expected["predictions"], rtol=1e-3, atol=1e-3)


def test_two_partitions_train_as_one_process(pipeline: list[Result], plain: Result) -> None:
    for each in pipeline:
        assert each["whole"]["mode"] == "sagemaker_model_parallel"
        assert each["whole"]["wrapped_in"] == "DistributedModel"
    assert plain["whole"]["mode"] == "not_parallel"
    _expect_same_training(pipeline[0]["whole"], plain["whole"])
    losses = pipeline[0]["whole"]["losses"]
    assert losses[-1] < losses[0] - 0.5


def test_each_rank_has_a_part_and_all_hear_the_same(pipeline: list[Result]) -> None:
    first, second = (each["whole"] for each in pipeline)
    assert first["states"] > 0
    assert second["states"] > 0
    assert first["states"] + second["states"] == len(first["weights"]) - 1  # two names of one
    assert first["losses"] == second["losses"]
    assert first["evaluations"] == second["evaluations"]
    _expect_equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["predictions"], second["predictions"], rtol=0, atol=0)


def test_gradients_are_accumulated_and_clipped_as_in_one_process(
    pipeline: list[Result], plain: Result
) -> None:
    _expect_same_training(pipeline[0]["accumulated"], plain["accumulated"])
    assert min(pipeline[0]["accumulated"]["norms"]) > 0.1


def test_what_is_resumed_ends_as_what_was_not_interrupted(pipeline: list[Result]) -> None:
    whole, resumed = pipeline[0]["whole"], pipeline[0]["resumed"]
    assert resumed["losses"] == whole["losses"][4:]
    assert resumed["rates"] == whole["rates"]
    assert resumed["evaluations"] == whole["evaluations"]
    _expect_equal(resumed["weights"], whole["weights"])


def test_in_16_bits_it_trains_nearly_the_same_and_resumes_with_the_same_bits(
    pipeline: list[Result], plain: Result
) -> None:
    half, resumed = pipeline[0]["half"], pipeline[0]["half resumed"]
    expected = torch.tensor(plain["whole"]["losses"])
    torch.testing.assert_close(torch.tensor(half["losses"]), expected, rtol=1e-2, atol=0)
    assert half["losses"] != pipeline[0]["whole"]["losses"]
    assert resumed["losses"] == half["losses"][4:]
    _expect_equal(resumed["weights"], half["weights"])


def test_what_is_saved_is_read_without_this_library(pipeline: list[Result], plain: Result) -> None:
    _expect_equal(plain["saved"], pipeline[0]["whole"]["weights"])


def test_the_best_model_is_loaded_at_the_end(pipeline: list[Result], plain: Result) -> None:
    best = pipeline[0]["best"]
    assert best["best"].endswith("checkpoint-2")
    _expect_equal(best["weights"], plain["best"])
    assert best["evaluations"][-1] == best["evaluations"][0]
    assert best["evaluations"][-1] != best["evaluations"][1]


def test_accelerate_leaves_the_data_alone_also_on_gpus(pipeline: list[Result]) -> None:
    assert [each["accelerate"] for each in pipeline] == ["NO", "NO"]


def test_replicas_share_each_batch(plain: Result, tmp_path: Path) -> None:
    found = _model_parallel(4, {"partitions": 2, "microbatches": 2, "ddp": True}, tmp_path)
    first, third = found[0]["whole"], found[2]["whole"]
    losses = torch.tensor([first["losses"], third["losses"]])
    assert not torch.equal(losses[0], losses[1]), "both have read the same pieces"
    _expect_same_training({**first, "losses": losses.mean(0).tolist()}, plain["whole"])
    _expect_equal(first["weights"], third["weights"])
    assert found[0]["resumed"]["losses"] == first["losses"][4:]
    _expect_equal(found[0]["resumed"]["weights"], first["weights"])
