# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`join()` of the legacy DistributedDataParallel: uneven batches train as with torch's class."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from ddp_models import Plain, Unused
from ddp_training import SMALL, assert_close, assert_same_bits, loss_of, made
from harness import run_ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch_ranks import smddp


def uneven(
    rank: int, world_size: int, options: dict[str, Any], join: dict[str, Any], parts: int
) -> None:
    """Rank r has r + 2 batches; weights and buffers come out as with torch's class."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    def train_uneven(ddp: Any) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.005)
        with ddp.join(**join):
            for step in range(rank + 2):
                for part in range(parts):
                    last = part == parts - 1
                    with contextlib.nullcontext() if last else ddp.no_sync():
                        loss_of(ddp, 10 * step + part).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {name: value.clone() for name, value in ddp.module.state_dict().items()}

    make = Unused if "find_unused_parameters" in options else Plain
    with smddp():
        torchs = train_uneven(TorchDDP(made(make), **options))
        ours = train_uneven(DistributedDataParallel(made(make), **options))
        assert_same_bits(ours)
        assert_close(ours, torchs, 1e-6)


@pytest.mark.parametrize(
    ("options", "join", "parts", "world_size"),
    [
        ({"bucket_cap_mb": SMALL}, {}, 1, 2),
        ({"bucket_cap_mb": SMALL}, {"divide_by_initial_world_size": False}, 1, 3),
        ({"find_unused_parameters": True}, {}, 1, 2),
        ({"broadcast_buffers": False}, {}, 2, 2),
        ({}, {"divide_by_initial_world_size": False}, 2, 2),
    ],
)
def test_uneven_batches(
    options: dict[str, Any], join: dict[str, Any], parts: int, world_size: int
) -> None:
    run_ranks(uneven, world_size, options, join, parts)
