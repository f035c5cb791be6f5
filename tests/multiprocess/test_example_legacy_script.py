# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The example of a script from 2020, run for one epoch on 2 processes as a user runs it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from launchers import launch_command, run_to_end

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "02_legacy_script" / "train.py"
SHORT = ["--epochs", "1", "--per-class", "250", "--batch-size", "32"]
RUN_TIMEOUT_S = 200.0

pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)


def _run(folder: Path, *options: str, cpu: bool = True) -> subprocess.CompletedProcess[str]:
    launcher = launch_command("smddprun", 2, *(["--cpu"] if cpu else []))
    command = [*launcher, str(SCRIPT), *SHORT, *options]
    return run_to_end(command, folder=folder, timeout_s=RUN_TIMEOUT_S)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_script_of_2020_trains_without_a_gpu(accumulate: int, tmp_path: Path) -> None:
    ended = _run(tmp_path, "--accumulate", str(accumulate))
    output = ended.stdout
    assert ended.returncode == 0, output
    assert "Traceback" not in output
    assert "2 processes, 16 images each per batch" in output
    accuracy = re.search(r"epoch 1: test accuracy ([\d.]+)%", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 70, output  # chance is 10 %
    weights = re.findall(r"weights of process (\d): ([0-9a-f]{16})", output)
    assert sorted(rank for rank, _ in weights) == ["0", "1"], output
    assert len({digest for _, digest in weights}) == 1, output
    saved = torch.load(tmp_path / "mnist_cnn.pt", weights_only=True)
    assert all(name.startswith("module.") for name in saved)


def test_user_is_told_once_per_process_that_the_modules_are_old(tmp_path: Path) -> None:
    output = _run(tmp_path).stdout
    text = "smdistributed.dataparallel.torch.dist is deprecated"
    for rank in (0, 1):
        told = [line for line in output.splitlines() if text in line and f"[rank {rank}]" in line]
        assert len(told) == 1, output


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has a GPU, so nothing is missing"
)
def test_without_cpu_option_the_script_stops_at_its_first_use_of_cuda(tmp_path: Path) -> None:
    # What docs/faq.md describes: `auto` does not move tensors to another device than was asked for.
    ended = _run(tmp_path, cpu=False)
    assert ended.returncode != 0
    told = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver on your system")
    assert any(text in ended.stdout for text in told), ended.stdout
