# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Every dialect of the documented MNIST script runs as it is, under every launcher.

The scripts are in `dialects/`: the calls of the documentation in their order, completed with real
digits. Nothing in them is for us, and nothing is patched; a launch may set what a user may set on a
machine without GPUs, `SMDDP_CPU_SHIM=full`, for a script that insists on a GPU.

Source: specification, sections 2 (the dialects), 4.6 (what they need on a CPU) and 12, point 1.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from launchers import launch_command, run_to_end

DIALECTS = Path(__file__).parent / "dialects"
DIGITS = Path(__file__).parents[3] / "examples" / "01_mnist" / "digits.py"

# Three epochs over 2,000 digits reach 91 to 94 % on 500 others (by the seed); chance is 10 %.
ACCURACY = 0.85
BATCH_SIZE = 32  # what the scripts take without an option
RUN_TIMEOUT_S = 400.0

pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S)


@dataclasses.dataclass(frozen=True)
class Dialect:
    """One script. `needs_gpu`: it insists on a GPU, so without one the user sets the full shim."""

    script: str
    needs_gpu: bool
    has_legacy_warning: bool


ALL = {
    "1.0": Dialect("v1_0.py", needs_gpu=True, has_legacy_warning=True),
    "1.2": Dialect("v1_2.py", needs_gpu=False, has_legacy_warning=True),
    "1.4": Dialect("v1_4.py", needs_gpu=False, has_legacy_warning=False),
    "2.x": Dialect("v2.py", needs_gpu=True, has_legacy_warning=False),
}

# mpirun alone and mpirun in front of smddprun differ in how a process learns its rank, which does
# not depend on how many there are; each dialect meets one with two processes, the other with eight.
RUNS = [
    *((name, launcher, n) for name in ALL for launcher in ("smddprun", "torchrun") for n in (2, 8)),
    ("1.0", "mpirun", 2),
    ("1.0", "mpirun smddprun", 8),
    ("1.2", "mpirun smddprun", 2),
    ("1.2", "mpirun", 8),
    ("1.4", "mpirun", 2),
    ("1.4", "mpirun smddprun", 8),
    ("2.x", "mpirun smddprun", 2),
    ("2.x", "mpirun", 8),
]
# Eight processes take half a minute of two cores. So each dialect is run with our launcher, each
# other launcher with one dialect, and the one that is made for eight with eight; all: --run-slow.
ALWAYS = {
    *((name, "smddprun", 2) for name in ALL),
    ("2.x", "torchrun", 2),
    ("1.4", "mpirun", 2),
    ("1.2", "mpirun smddprun", 2),
    ("1.0", "mpirun smddprun", 8),
}


FRESH = ("1.4", "mpirun", 2)  # with interpreters that are started, as users do it


def _parameters() -> list[ParameterSet]:
    marks = {FRESH: [pytest.mark.fresh]}
    slow = [pytest.mark.slow]
    return [pytest.param(*run, marks=marks.get(run, [] if run in ALWAYS else slow)) for run in RUNS]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a prepared data set, read once instead of by each of a hundred processes."""
    digits = _load(DIGITS)
    train, test = digits.split(digits.load(), per_class=250)
    folder = tmp_path_factory.mktemp("digits")
    np.savez(
        folder / "digits.npz",
        train_images=train.images,
        train_labels=train.labels,
        test_images=test.images,
        test_labels=test.labels,
    )
    return folder


def _run(
    script: Sequence[str | Path],
    launcher: str,
    num_processes: int,
    data: Path,
    models: Path,
    *,
    has_full_shim: bool,
) -> subprocess.CompletedProcess[str]:
    """Start a script and its options as a user does, `--cpu` included where the launcher has it."""
    environment = {"SM_CHANNEL_TRAIN": str(data), "SM_MODEL_DIR": str(models)}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # the subject is a machine without GPUs
    options = []
    if has_full_shim and launcher == "smddprun":
        options = ["--cpu"]
    elif has_full_shim:
        environment["SMDDP_CPU_SHIM"] = "full"
    command = [*launch_command(launcher, num_processes, *options), *map(str, script)]
    return run_to_end(command, environment=environment, timeout_s=RUN_TIMEOUT_S)


def _check(
    ended: subprocess.CompletedProcess[str], num_processes: int, batch_size: int, models: Path
) -> None:
    """It ended well, each rank had its share of the batch, and all hold the same, good weights."""
    output = ended.stdout
    assert ended.returncode == 0, output
    assert "Traceback" not in output, output
    lines = re.findall(r"rank (\d+) batch (\d+) accuracy ([\d.]+) weights ([0-9a-f]{64})", output)
    assert sorted(int(rank) for rank, *_ in lines) == list(range(num_processes)), output
    assert {int(batch) for _, batch, *_ in lines} == {batch_size}, output
    assert len({digest for *_, digest in lines}) == 1, output
    assert all(float(accuracy) > ACCURACY for *_, accuracy, _ in lines), output
    saved = torch.load(models / "mnist_cnn.pt", weights_only=True)
    assert sum(tensor.numel() for tensor in saved.values()) == 26010


def _repaired(folder: Path) -> Path:
    """A copy of the script of 1.0 with the one line changed that the next release changed too."""
    source = (DIALECTS / ALL["1.0"].script).read_text()
    line = "batch_size //= dist.get_world_size() // 8"
    assert source.count(line) == 1
    copy = folder / "repaired.py"
    copy.write_text(source.replace(line, "batch_size //= dist.get_world_size()"))
    # What a script imports is found beside it.
    (folder / "parts.py").write_text((DIALECTS / "parts.py").read_text())
    return copy


@pytest.mark.parametrize(("name", "launcher", "num_processes"), _parameters())
def test_dialect_runs_unmodified(
    name: str, launcher: str, num_processes: int, data: Path, tmp_path: Path
) -> None:
    dialect = ALL[name]
    script, options = DIALECTS / dialect.script, []
    if name == "1.0" and num_processes < 8:
        script = _repaired(tmp_path)  # the next test shows why
    elif name == "1.0":
        options = ["--batch-size", "4"]  # of each process: the script divides it by 8 // 8
    ended = _run(
        [script, *options],
        launcher,
        num_processes,
        data,
        tmp_path,
        has_full_shim=dialect.needs_gpu,
    )
    _check(ended, num_processes, BATCH_SIZE // num_processes, tmp_path)
    is_warned = "is deprecated in the SageMaker distributed data parallel library" in ended.stdout
    assert is_warned == dialect.has_legacy_warning, ended.stdout


def test_1_0_divides_by_zero_below_eight_processes(data: Path, tmp_path: Path) -> None:
    # Specification, section 11: no library can help a script that divides by world_size // 8.
    ended = _run([DIALECTS / "v1_0.py"], "smddprun", 2, data, tmp_path, has_full_shim=True)
    assert ended.returncode != 0
    assert "ZeroDivisionError" in ended.stdout, ended.stdout
    assert "accuracy" not in ended.stdout, ended.stdout


def test_scripts_that_want_no_gpu_run_with_cpu_option_too(data: Path, tmp_path: Path) -> None:
    # `smddprun --cpu` tells the script that it has GPUs: it then asks for "cuda" and gets the CPU.
    ended = _run([DIALECTS / "v1_4.py"], "smddprun", 2, data, tmp_path, has_full_shim=True)
    _check(ended, 2, BATCH_SIZE // 2, tmp_path)
