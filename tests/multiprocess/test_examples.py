# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The example programs, run in their short form the way a user runs them.

Each launcher trains once per module (about 30 steps on 2 processes); the tests look at what such a
run leaves behind: its figures, its output and its checkpoint.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from launchers import launch_command, run_to_end
from torch import nn

MNIST_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "01_mnist"
TRAIN_SCRIPT = MNIST_FOLDER / "train.py"
NUM_PROCESSES = 2
RUN_TIMEOUT_S = 150.0

pytestmark = pytest.mark.timeout(4 * RUN_TIMEOUT_S)


@dataclasses.dataclass(frozen=True)
class ShortRun:
    """What one short training run left behind."""

    figures: dict[str, Any]
    output: str
    checkpoint: Path

    def repeatable_figures(self) -> dict[str, Any]:
        """The figures without those that a clock measured."""
        measured = {"samples_per_s", "step_ms", "all_reduce_ms", "training_s"}
        assert measured < self.figures.keys()
        return {name: value for name, value in self.figures.items() if name not in measured}


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], ShortRun]:
    """A function (launcher, backend) -> ShortRun that trains once per pair of arguments."""
    done: dict[tuple[str, str], ShortRun] = {}

    def get(launcher: str, backend: str) -> ShortRun:
        if (launcher, backend) not in done:
            folder = tmp_path_factory.mktemp(f"{launcher}-{backend}")
            checkpoint, result = folder / "mnist.pt", folder / "result.json"
            options = ["--short", "--hash", "--backend", backend]
            options += ["--save", str(checkpoint), "--result", str(result)]
            command = [*launch_command(launcher, NUM_PROCESSES), str(TRAIN_SCRIPT), *options]
            ended = run_to_end(command, timeout_s=RUN_TIMEOUT_S)
            assert ended.returncode == 0, ended.stdout
            figures = json.loads(result.read_text(encoding="utf-8"))
            done[launcher, backend] = ShortRun(figures, ended.stdout, checkpoint)
        return done[launcher, backend]

    return get


@pytest.fixture(params=["smddprun", "torchrun"])
def run(request: pytest.FixtureRequest, short_run: Callable[[str, str], ShortRun]) -> ShortRun:
    return short_run(request.param, "smddp")


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_short_run_uses_the_backend_and_all_processes(run: ShortRun) -> None:
    assert run.figures["backend"] == "smddp"
    assert run.figures["world_size"] == NUM_PROCESSES
    # 2,000 training images in batches of 64 over all processes, the incomplete last one dropped.
    assert run.figures["num_steps"] == 31
    assert len(run.figures["step_losses"]) == 31


def test_loss_falls(run: ShortRun) -> None:
    losses = run.figures["step_losses"]
    # Ten classes and fresh weights: the first loss must be close to ln 10 = 2.303.
    assert losses[0] == pytest.approx(2.303, abs=0.1)
    assert statistics.fmean(losses[-3:]) < 0.75 * losses[0]
    assert run.figures["test_accuracy"] > 0.5


def test_ranks_end_with_bitwise_equal_weights(run: ShortRun) -> None:
    found = re.findall(r"weights of rank (\d+): sha256 ([0-9a-f]{64})", run.output)
    assert sorted(int(rank) for rank, _ in found) == list(range(NUM_PROCESSES)), run.output
    assert {digest for _, digest in found} == {run.figures["weights_sha256"]}, run.output


def test_progress_reaches_the_end_in_lines_of_its_own(run: ShortRun) -> None:
    bars = [line for line in run.output.splitlines() if "31/31" in line]
    assert len(bars) == 1, run.output
    assert "100%" in bars[0]
    assert "\r" not in run.output


def test_smddprun_and_torchrun_give_the_same_result(
    short_run: Callable[[str, str], ShortRun],
) -> None:
    by_smddprun = short_run("smddprun", "smddp").repeatable_figures()
    assert by_smddprun == short_run("torchrun", "smddp").repeatable_figures()


def test_smddp_and_gloo_give_the_same_result(short_run: Callable[[str, str], ShortRun]) -> None:
    # With two ranks every sum has two terms, and a + b has one rounded value in either order: the
    # backends must agree in every bit. With three ranks they need not.
    by_smddp = short_run("torchrun", "smddp").repeatable_figures()
    by_gloo = short_run("torchrun", "gloo").repeatable_figures()
    assert by_smddp.pop("backend") == "smddp"
    assert by_gloo.pop("backend") == "gloo"
    assert by_smddp == by_gloo


class PlainNet(nn.Module):
    """The example's network, written again without anything of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=2)
        self.fc1 = nn.Linear(1568, 1024)
        self.fc2 = nn.Linear(1024, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(self.conv1(images).relu(), 2)
        x = torch.max_pool2d(self.conv2(x).relu(), 2)
        scores: torch.Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def test_checkpoint_loads_in_plain_torch(run: ShortRun) -> None:
    model = PlainNet()
    model.load_state_dict(torch.load(run.checkpoint, weights_only=True), strict=True)

    digits = load_module(MNIST_FOLDER / "digits.py")
    _, test = digits.split(digits.load(), per_class=250)
    with torch.no_grad():
        predicted = model(torch.from_numpy(test.images)).argmax(dim=1)
    num_correct = int((predicted == torch.from_numpy(test.labels)).sum())
    # One image may fall on the other side: here all images go through the network in one batch.
    assert abs(num_correct - run.figures["test_accuracy"] * len(test.labels)) < 1.5


def test_split_keeps_the_sides_apart_and_every_digit_equally_frequent() -> None:
    digits = load_module(MNIST_FOLDER / "digits.py")
    train, test = digits.split(digits.load())
    assert torch.from_numpy(train.labels).bincount().tolist() == [400] * 10
    assert torch.from_numpy(test.labels).bincount().tolist() == [100] * 10
    train_images = {image.tobytes() for image in train.images}
    assert len(train_images) == 4000
    assert train_images.isdisjoint(image.tobytes() for image in test.images)


@pytest.mark.parametrize("option", [["--epochs", "0"], ["--batch-size", "many"]])
def test_bad_option_is_refused_with_the_way_out(option: list[str]) -> None:
    ended = run_to_end([sys.executable, str(TRAIN_SCRIPT), *option], timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode == 2
    assert f"got '{option[1]}'; expected a whole number from 1 up" in ended.stdout


def test_batch_larger_than_the_data_is_refused_with_the_way_out() -> None:
    command = [*launch_command("smddprun", NUM_PROCESSES), str(TRAIN_SCRIPT)]
    ended = run_to_end([*command, "--short", "--batch-size", "4000"], timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode != 0
    assert "Pass --batch-size 2000 or less" in ended.stdout


def figures(backend: str, step_ms: float, test_accuracy: float) -> dict[str, Any]:
    return {
        "backend": backend,
        "world_size": 2,
        "num_steps": 100,
        "test_accuracy": test_accuracy,
        "samples_per_s": 64e3 / step_ms,
        "step_ms": step_ms,
        "all_reduce_ms": step_ms / 10,
        "gradient_bytes": 6520616,
        "weights_sha256": "0" * 64,
    }


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demonstration, ready to be given made-up training runs."""
    module = load_module(MNIST_FOLDER / "demo.py")
    monkeypatch.setattr(module, "find_smddprun", lambda: "smddprun")
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    return module


def give_figures(
    monkeypatch: pytest.MonkeyPatch, demo: ModuleType, test_accuracy: float
) -> list[str]:
    """Replace training by made-up figures; the list returned receives the backend of each run."""
    backends: list[str] = []

    def run_training(
        launcher: str, num_processes: int, arguments: list[str], result_file: Path, quiet: bool
    ) -> dict[str, Any]:
        backend = arguments[arguments.index("--backend") + 1]
        backends.append(backend)
        return figures(backend, 30.0 if backend == "gloo" else 20.0, test_accuracy)

    def train_and_serve(num_processes: int, folder: Path) -> tuple[dict[str, Any], float]:
        return figures("smddp", 20.0, test_accuracy), test_accuracy

    monkeypatch.setattr(demo, "run_training", run_training)
    monkeypatch.setattr(demo, "train_and_serve", train_and_serve)
    return backends


def test_demo_alternates_the_backends_and_reports_the_speed_up(
    monkeypatch: pytest.MonkeyPatch, demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    backends = give_figures(monkeypatch, demo, test_accuracy=0.98)
    assert demo.main() == 0
    assert backends == ["smddp", "gloo", "gloo", "smddp"] * 2
    output = capsys.readouterr().out
    assert re.search(r"whole training step +1\.50x \(1\.50 to 1\.50\)", output), output
    assert re.search(r"test accuracy.* 98\.00%", output), output


def test_demo_fails_at_low_accuracy(
    monkeypatch: pytest.MonkeyPatch, demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    give_figures(monkeypatch, demo, test_accuracy=0.95)
    assert demo.main() == 1
    assert "expected more than 95%" in capsys.readouterr().err


def test_demo_serves_what_it_has_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    demo = load_module(MNIST_FOLDER / "demo.py")
    make = demo.make_estimator

    def make_short(num_processes: int, home: Path) -> Any:
        estimator = make(num_processes, home)
        estimator.set_hyperparameters(**{"epochs": 1, "max-steps": 20})
        return estimator

    monkeypatch.setattr(demo, "make_estimator", make_short)
    full, served = demo.train_and_serve(NUM_PROCESSES, tmp_path)
    assert full["world_size"] == NUM_PROCESSES
    assert served == full["test_accuracy"]
    assert full["test_accuracy"] > 0.3  # ten kinds of digits
    assert list((tmp_path / "home" / "endpoints").glob("[!.]*")) == []
    output = capfd.readouterr().out
    assert re.search(r"test accuracy \(%\) +[0-9.]+ at the end", output), output


def test_demo_fails_if_the_endpoint_reads_otherwise(
    monkeypatch: pytest.MonkeyPatch, demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    give_figures(monkeypatch, demo, test_accuracy=0.98)
    full = figures("smddp", 20.0, 0.98)
    monkeypatch.setattr(demo, "train_and_serve", lambda *_: (full, 0.97))
    assert demo.main() == 1
    assert "expected the same" in capsys.readouterr().err


def test_demo_fails_without_a_package_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    give_figures(monkeypatch, demo, test_accuracy=0.98)
    packages = {**demo.REQUIRED_PACKAGES, "absent_package": "pip install absent"}
    monkeypatch.setattr(demo, "REQUIRED_PACKAGES", packages)
    assert demo.main() == 1
    assert "absent_package: pip install absent" in capsys.readouterr().err


def test_demo_shows_the_output_of_a_failed_run(demo: ModuleType, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text("#!/bin/sh\necho the first error\nexit 3\n")
    launcher.chmod(0o755)
    with pytest.raises(demo.DemoError, match=r"(?s)the first error.*ended with status 3"):
        demo.run_training(str(launcher), 2, [], tmp_path / "result.json", quiet=True)


def test_demo_does_not_take_an_old_result_for_a_new_one(demo: ModuleType, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text("{}")
    with pytest.raises(demo.DemoError, match="wrote no result file"):
        demo.run_training("/bin/true", 2, [], result, quiet=True)


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    folder = MNIST_FOLDER.parent / "14_notebook"
    cells = json.loads((folder / "mnist.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 7
    script = tmp_path / "cells.py"
    script.write_text("\n".join(code), encoding="utf-8")
    ended = run_to_end(
        [sys.executable, str(script)],
        environment={"SMD_HOME": str(tmp_path / "home")},
        folder=folder,
        timeout_s=RUN_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"accuracy +9[0-9.]+", ended.stdout), ended.stdout
    assert re.search(r"9[0-9.]+% of 200 digits are right", ended.stdout), ended.stdout
    assert list((tmp_path / "home" / "endpoints").glob("[!.]*")) == []
