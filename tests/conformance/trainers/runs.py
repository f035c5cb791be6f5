# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Starting the scripts of this folder the way a user does, and comparing what they recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import preloaded
import pytest
import torch
from launchers import launch_command, run_to_end
from preloaded import Preload

FOLDER = Path(__file__).resolve().parent
NUM_PROCESSES = 2
# A trainer's imports take seconds per rank, and DeepSpeed compiles an operation the first time.
RUN_TIMEOUT_S = 240.0
NO_NETWORK = {"HF_HUB_OFFLINE": "1"}

# A mean over 16 samples, against the mean of two means over 8: the same sum in another order, so
# single precision (2^-24 = 6e-8 relative) differs in the last bits. Plain SGD carries that forward
# without magnifying it; an optimizer that divides by the size of a gradient would not.
# Source of the figure: dataparallel specification, section 12, statement 2.
RELATIVE_TOLERANCE = 1e-6
# Weights lie around 0.1, and some near zero; there a relative figure says nothing.
WEIGHT_TOLERANCE = 1e-6


def python() -> list[str]:
    """One process, no launcher."""
    return [preloaded.python(Preload.TRAINERS)]


def smddprun(*options: str) -> list[str]:
    """The launcher of this package, with NUM_PROCESSES ranks."""
    return launch_command("smddprun", NUM_PROCESSES, *options, preload=Preload.TRAINERS)


def torchrun() -> list[str]:
    """The launcher of torch, with NUM_PROCESSES ranks."""
    return launch_command("torchrun", NUM_PROCESSES, preload=Preload.TRAINERS)


@dataclasses.dataclass(frozen=True)
class Run:
    """What one training run left behind."""

    folder: Path
    ranks: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]

    @property
    def losses(self) -> list[float]:
        """Per step, the loss of the joined batch, as rank 0 knows it."""
        losses: list[float] = self.ranks[0]["losses"]
        return losses


def run_script(
    launcher: Sequence[str],
    script: str,
    folder: Path,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a script of this folder, which must succeed; it records into `folder`."""
    ended = run_to_end(
        [*launcher, str(FOLDER / script), str(folder), *arguments],
        environment={**NO_NETWORK, **(variables or {})},
        timeout_s=RUN_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout


def read(folder: Path) -> Run:
    """Read what the ranks of a run recorded."""
    return Run(
        folder=folder,
        ranks=[json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))],
        weights=torch.load(folder / "weights.pt", weights_only=True),
    )


def train(launcher: Sequence[str], script: str, folder: Path, *arguments: str) -> Run:
    """`run_script`, then `read`."""
    run_script(launcher, script, folder, *arguments)
    return read(folder)


def expect_smddp(run: Run) -> None:
    """All ranks trained together, over smddp."""
    assert [rank["backend"] for rank in run.ranks] == ["smddp"] * NUM_PROCESSES
    assert [rank["world_size"] for rank in run.ranks] == [NUM_PROCESSES] * NUM_PROCESSES


def expect_learning(losses: Sequence[float]) -> None:
    """The loss starts where ten classes and fresh weights put it, and falls."""
    # ln 10 = 2.303 for scores near zero.
    assert losses[0] == pytest.approx(2.303, abs=0.5)
    assert sum(losses[-4:]) / 4 < 0.85 * losses[0]


def expect_equal_ranks(run: Run) -> None:
    """The weights of all ranks are equal in every bit."""
    assert len(run.ranks) == NUM_PROCESSES
    assert len({rank["weights_sha256"] for rank in run.ranks}) == 1


def expect_equal_to_one_process(
    losses: Sequence[float],
    weights: Mapping[str, torch.Tensor],
    one_losses: Sequence[float],
    one_weights: Mapping[str, torch.Tensor],
) -> None:
    """Loss curve and weights are those of one process that trains on the joined batch."""
    assert len(losses) == len(one_losses)
    assert losses == pytest.approx(one_losses, rel=RELATIVE_TOLERANCE)
    assert weights.keys() == one_weights.keys()
    for name, tensor in one_weights.items():
        torch.testing.assert_close(
            weights[name],
            tensor,
            rtol=RELATIVE_TOLERANCE,
            atol=WEIGHT_TOLERANCE,
            msg=lambda text, name=name: f"{name}: {text}",
        )
