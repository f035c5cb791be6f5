# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The script of test_restart.py: a training that goes on from its checkpoint.

    torchrun ... restart_training.py FOLDER [--kill-rank R --kill-step S]

Weights, batches and the order of sums follow from step and rank alone, so that a run that was
interrupted must end with the very weights of one that was not. In its first life, and in no other,
rank R kills itself in the middle of the backward of step S, while the others average gradients.

Every life adds a line to `FOLDER/lives-RANK`: the step at which it begins. (The variable
TORCHELASTIC_RESTART_COUNT does not tell lives apart: a host whose own workers were well starts them
again without counting.)
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

STEPS = 12
CHECKPOINT_EVERY = 3
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "03_gpt" / "checkpoint.py"


def load_checkpoint_example() -> ModuleType:
    """The module that examples/03_gpt writes its checkpoints with."""
    spec = importlib.util.spec_from_file_location("checkpoint", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(step: int, rank: int) -> torch.Tensor:
    """Shape `[16, 64]`, float32; other data for every step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 64, generator=generator)


def kill_in_backward(parameter: torch.Tensor) -> None:
    """Kill this process when the gradient of `parameter` is there; later buckets never come."""

    def strike(_: torch.Tensor) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    parameter.register_hook(strike)


def main_on_rank(rank: int, world_size: int, arguments: Sequence[str]) -> None:
    """`main` in a rank that the tests' harness started."""
    main(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; `arguments` are those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-rank", type=int, default=-1)
    parser.add_argument("--kill-step", type=int, default=-1)
    args = parser.parse_args(arguments)
    checkpoint = load_checkpoint_example()
    path = args.folder / "checkpoint.pt"

    dist.init_process_group("smddp")
    rank = dist.get_rank()
    torch.manual_seed(20260)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64), torch.nn.Linear(64, 1)
    )
    # Small buckets, so that one of them is under way when the rank dies.
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = checkpoint.load(path, torch.device("cpu"), expected={})
    first = 0
    if state is not None:
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    with (args.folder / f"lives-{rank}").open("a") as lives:
        lives.write(f"{first}\n")
    for step in range(first, STEPS):
        if first == 0 and (rank, step) == (args.kill_rank, args.kill_step):
            kill_in_backward(model[0].weight)
        optimizer.zero_grad()
        ddp(batch(step, rank)).square().mean().backward()
        optimizer.step()
        if rank == 0 and (step + 1) % CHECKPOINT_EVERY == 0:
            saved = {
                "step": step + 1,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "options": {},
            }
            checkpoint.save(saved, path)
    torch.save(model.state_dict(), args.folder / f"weights-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
