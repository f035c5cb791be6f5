# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The examples of trainers, each for one epoch with 2 processes, as their pages say to run them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from launchers import launch_command, run_to_end
from preloaded import Preload

from tests.packages import require

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# A trainer's imports take seconds per rank, and DeepSpeed compiles an operation the first time.
RUN_TIMEOUT_S = 240.0

pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S)


def run_one_epoch(example: str, *launcher_options: str, into: Path | None = None) -> str:
    """Output of a run that must succeed."""
    options = ["--epochs", "1"]
    if into is not None:
        options += ["--output", str(into)]
    return run(example, launcher_options, options)


def run(
    example: str,
    launcher_options: Sequence[str],
    options: Sequence[str],
    preload: Preload = Preload.TRAINERS,
) -> str:
    """Output of a run that must succeed."""
    script = EXAMPLES / example / "train.py"
    launch = launch_command("smddprun", 2, *launcher_options, preload=preload)
    ended = run_to_end(
        [*launch, str(script), *options],
        environment={"HF_HUB_OFFLINE": "1"},
        timeout_s=RUN_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout
    # What torch and the trainers warn about (`FutureWarning: ..`) is dealt with in the scripts.
    assert not re.search(r"\b\w+Warning: ", ended.stdout), ended.stdout
    return ended.stdout


def accuracy(output: str) -> float:
    """The last test accuracy that was printed, in percent; by one rank only."""
    found = re.findall(r"^\[rank (\d+)\].*test accuracy ([\d.]+)%", output, flags=re.MULTILINE)
    assert [rank for rank, _ in found] == ["0"], output
    return float(found[0][1])


def test_huggingface_trainer(tmp_path: Path) -> None:
    require("transformers")
    output = run_one_epoch("04_huggingface_trainer", "--cpu", into=tmp_path)
    assert "sagemaker_data_parallel: 2 process(es), backend smddp, device cpu" in output
    assert accuracy(output) > 25  # of a transformer's first look at 4,000 images; chance is 10
    assert (tmp_path / "model.safetensors").is_file()
    assert (tmp_path / "checkpoint-63" / "trainer_state.json").is_file()


def test_huggingface_trainer_with_model_parallelism(tmp_path: Path) -> None:
    require("transformers")
    parameters = '{"pipeline_parallel_degree": 2, "microbatches": 4}'
    output = run(
        "09_model_parallel_trainer",
        ["--cpu", "-x", f"SM_HP_MP_PARAMETERS={parameters}"],
        [
            *("--layers", "2", "--width", "32", "--heads", "2", "--vocabulary", "512"),
            *("--context", "32", "--max_steps", "20", "--eval_steps", "10", "--save_steps", "20"),
            *("--learning_rate", "1e-2", "--warmup_steps", "2", "--output_dir", str(tmp_path)),
        ],
        Preload.TORCH,  # transformers asks for model parallelism when it is imported
    )
    assert "sagemaker_model_parallel: 1 replica(s)" in output
    found = re.findall(r"^\[rank (\d+)\] perplexity ([\d.]+)", output, flags=re.MULTILINE)
    assert [rank for rank, _ in found] == ["0"], output
    assert float(found[0][1]) < 150  # of 512 tokens
    assert (tmp_path / "model.safetensors").is_file()
    parts = sorted(path.name for path in (tmp_path / "checkpoint-20").glob("optimizer.pt*"))
    assert parts == ["optimizer.pt_0", "optimizer.pt_1"]


def test_lightning(tmp_path: Path) -> None:
    require("lightning")
    output = run_one_epoch("05_lightning", into=tmp_path)
    assert "backend smddp, 2 processes" in output
    assert accuracy(output) > 80
    assert list(tmp_path.glob("checkpoints/*.ckpt"))


def test_accelerate() -> None:
    require("accelerate")
    output = run_one_epoch(
        "06_accelerate",
        "--cpu",
        "-x",
        "ACCELERATE_USE_SAGEMAKER=true",
    )
    assert "2 process(es), backend smddp" in output
    assert accuracy(output) > 80


def test_deepspeed() -> None:
    require("deepspeed")
    output = run_one_epoch("07_deepspeed", "-x", "DS_ACCELERATOR=cpu")
    assert "ZeRO stage 2, 2 processes, backend smddp" in output
    assert accuracy(output) > 80
