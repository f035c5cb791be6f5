# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the training scripts of this folder share: the data, and the record that a rank leaves.

Each script trains the same way with one process and with several: 16 digits per step in a fixed
order, of which each rank takes its share. What a rank saw goes into a file that the tests read.
Imported by scripts that run as ranks, so it knows nothing of pytest.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

JOINED_BATCH_SIZE = 16
LEARNING_RATE = 0.05
MOMENTUM = 0.9
SEED = 7
# Odd on purpose: the ranks' shares of the evaluation differ in size.
NUM_TEST_IMAGES = 101

_DIGITS = Path(__file__).resolve().parents[3] / "examples" / "01_mnist" / "digits.py"


@functools.cache
def digits(num_train: int = 256) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Real digits (train, test): `images` float32 (n, 1, 28, 28) and `labels` int64 (n,)."""
    spec = importlib.util.spec_from_file_location("digits", _DIGITS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits"] = module
    spec.loader.exec_module(module)
    train, test = module.split(module.load())
    return tuple(
        {
            "images": torch.from_numpy(side.images[:count]),
            "labels": torch.from_numpy(side.labels[:count]),
        }
        for side, count in ((train, num_train), (test, NUM_TEST_IMAGES))
    )  # type: ignore[return-value]


class Net(nn.Module):
    """Two linear layers, for the trainers that take any module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(28 * 28, 32), nn.Tanh(), nn.Linear(32, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images)
        return scores


def initial_net() -> Net:
    """The network with the weights that every run starts from."""
    torch.manual_seed(SEED)
    return Net()


def weights_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Equal exactly when names and bits of all weights are."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write(
    folder: Path, losses: Sequence[float], state: Mapping[str, torch.Tensor], **more: Any
) -> None:
    """Write what this rank saw: `rank<n>.json`, and rank 0 the weights besides.

    Args:
        folder: where to; it exists.
        losses: per step, the mean loss of the joined batch.
        state: the weights at the end, under the names that the model gave them.
        more: further figures of this trainer.
    """
    together = dist.is_initialized()
    rank = dist.get_rank() if together else 0
    record = {
        "backend": dist.get_backend() if together else None,
        "world_size": dist.get_world_size() if together else 1,
        "local_rank": os.environ.get("SMDATAPARALLEL_LOCAL_RANK"),
        "losses": list(losses),
        "weights_sha256": weights_sha256(state),
        **more,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(record), encoding="utf-8")
    if rank == 0:
        torch.save(
            {name: tensor.detach().cpu() for name, tensor in state.items()}, folder / "weights.pt"
        )
