# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Three steps of an architecture over two ranks, and the same in one process.

    smddprun -np 2 python -m tests.architectures.ranks NAME FOLDER

Each rank writes what it found to FOLDER/RANK.json (see `Found`).
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import logging
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.architectures.models import ARCHITECTURES, Architecture, Batch
from tests.multiprocess.machine_speed import scaled

STEPS = 3
MICROBATCHES = 2
# Of values: sums in another order, three steps later.
TOLERANCE = 2e-5
STACKS_AFTER_S = 50.0


@dataclasses.dataclass
class Found:
    """What a rank found.

    Attributes:
        error: what was raised, with its type; empty if nothing was.
        local_bytes: of the parameters on this rank.
        difference: the largest between a parameter or buffer after the steps and that of one
            process, relative to the larger of 1 and its value; only on rank 0.
        loss_difference: of the losses.
        moved: how far training has moved a value, at most.
        wrong: names of what is not equal, at most ten.
        warnings: what the library has warned of, each once.
    """

    error: str = ""
    local_bytes: int = 0
    difference: float = 0.0
    loss_difference: float = 0.0
    moved: float = 0.0
    wrong: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() not in self.texts:
            self.texts.append(record.getMessage())


def batches(architecture: Architecture) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [architecture.make_batch(generator) for _ in range(STEPS)]


def train_here(architecture: Architecture) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The losses of the steps, and the state after them, in one process."""
    model = architecture.make()
    optimizer = architecture.make_optimizer(model.parameters())
    losses = []
    for batch in batches(architecture):
        optimizer.zero_grad()
        mean = torch.zeros(())
        for number in range(MICROBATCHES):
            part = {name: value.chunk(MICROBATCHES)[number] for name, value in batch.items()}
            loss = architecture.run(model, part) / MICROBATCHES
            loss.backward()
            mean += loss.detach()
        optimizer.step()
        losses.append(mean)
    return losses, model.state_dict()


def train_over_ranks(architecture: Architecture) -> tuple[list[Tensor], dict[str, Tensor], int]:
    """The same over the ranks of this job; also the bytes of the parameters on this one."""
    import smdistributed.modelparallel.torch as smp

    # By memory alone: by time, a model as small as these would rather stay in one piece.
    smp.init(
        {
            "pipeline_parallel_degree": 2,
            "microbatches": MICROBATCHES,
            "memory_weight": 1.0,
            "auto_partition": not architecture.places,
            "default_partition": 0,
        }
    )
    module = architecture.make()
    for pattern, place in architecture.places.items():
        for name, part in module.named_modules():
            if re.fullmatch(pattern, name):
                smp.set_partition(part, place)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(architecture.make_optimizer(model.parameters()))

    @smp.step
    def train(**batch: Tensor) -> Tensor:
        loss = architecture.run(model, batch)
        model.backward(loss)
        return loss.detach()

    losses = []
    for batch in batches(architecture):
        optimizer.zero_grad()
        losses.append(train(**batch).reduce_mean())
        optimizer.step()
    here = sum(value.numel() * value.element_size() for value in model.local_parameters())
    losses = [torch.as_tensor(loss) for loss in losses]
    return losses, model.state_dict(), here


def compare(rank: int, size: int, name: str) -> dict[str, Any]:
    """Both, and where they differ: a `Found`, as a dictionary."""
    warnings = _Warnings()
    logging.getLogger("smdistributed").addHandler(warnings)
    architecture = ARCHITECTURES[name]
    found = Found(warnings=warnings.texts)
    try:
        losses, state, found.local_bytes = train_over_ranks(architecture)
    except Exception as error:
        found.error = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        return dataclasses.asdict(found)
    if rank == 0:
        _compare_states(found, architecture, losses, state)
    return dataclasses.asdict(found)


def _compare_states(
    found: Found, architecture: Architecture, losses: list[Tensor], state: dict[str, Tensor]
) -> None:
    wanted_losses, wanted = train_here(architecture)
    begin = architecture.make().state_dict()
    found.wrong = sorted(wanted.keys() ^ state.keys())
    for mine, other in zip(losses, wanted_losses, strict=True):
        found.loss_difference = max(found.loss_difference, float((mine - other).abs()))
    if not found.loss_difference < TOLERANCE * max(1.0, float(wanted_losses[0])):
        found.wrong.append(f"losses {[*map(float, losses)]} not {[*map(float, wanted_losses)]}")
    for key in wanted.keys() & state.keys():
        other = wanted[key].double()
        difference = float(_largest((state[key].double() - other) / other.abs().clamp(min=1.0)))
        found.difference = max(found.difference, difference)
        found.moved = max(found.moved, float(_largest(other - begin[key].double())))
        if not difference < TOLERANCE:
            found.wrong.append(f"{key}: {difference:.1e}")
    if not found.moved > 100 * TOLERANCE:
        found.wrong.append(f"nothing: training has moved no value by more than {found.moved:.1e}")
    found.wrong = found.wrong[:10]


def _largest(value: Tensor) -> Any:
    return value.abs().max() if value.numel() else 0.0


def main() -> None:
    name, folder = sys.argv[1:]
    # transformers would import TensorFlow if it is there, which takes seconds.
    os.environ.setdefault("USE_TF", "0")
    faulthandler.dump_traceback_later(scaled(STACKS_AFTER_S), exit=False)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    found = compare(rank, int(os.environ["WORLD_SIZE"]), name)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
