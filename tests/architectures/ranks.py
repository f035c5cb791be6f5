# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Three steps of one architecture: in one process with torch alone, and as ranks of a pipeline.

Both take the same weights and batches, in the same microbatches, and divide each loss by their
number. The optimizer is SGD with momentum: AdamW would hide a gradient of the wrong size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.architectures.registry import Architecture, Batch, Loss, architectures

STEPS = 3
MICROBATCHES = 4
BATCH = 8
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Trained:
    """What three steps have made.

    Attributes:
        losses: the mean over microbatches, for each step (of each turn).
        state: the whole state dictionary afterwards; on rank 0.
        moved: by parameter, how far its elements have moved at most; in one process.
        held_bytes: of parameters, on this rank.
        generated: tokens, by microbatch.
        warnings: of the library, each once.
    """

    losses: list[float]
    state: dict[str, Tensor]
    moved: dict[str, float] = dataclasses.field(default_factory=dict)
    held_bytes: int = 0
    generated: list[Tensor] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


def train_whole(rank: int, world_size: int, name: str) -> Trained:
    """In one process, without the library."""
    architecture = architectures()[name]
    with _quiet():
        model: Any = architecture.make()
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        turns = list(_turns(architecture, model))
        losses = []
        for batch in _batches(architecture):
            for loss_of, optimizer in turns:
                model.zero_grad()
                total = torch.zeros(())
                for part in _parts(batch):
                    loss = loss_of(model, {**part, **architecture.arguments})
                    (loss / MICROBATCHES).backward()
                    total += loss.detach()
                optimizer.step()
                losses.append(float(total / MICROBATCHES))
        moved = {
            name: float((value.detach() - before[name]).abs().max())
            for name, value in model.named_parameters()
        }
        generated: list[Tensor] = []
        if architecture.generate:
            model.eval()
            parts = _parts(_batches(architecture)[0])
            generated = [_generate(architecture, model, part) for part in parts]
        return Trained(
            losses, dict(model.state_dict()), moved, _bytes(model.parameters()), generated
        )


def train_in_a_pipeline(rank: int, world_size: int, name: str) -> Trained:
    """With a partition for each rank; balanced by memory, so that a small model is divided."""
    import smdistributed.modelparallel.torch as smp

    architecture = architectures()[name]
    heard = _Warnings()
    logging.getLogger("smdistributed").addHandler(heard)
    with _quiet():
        smp.init(
            {
                "pipeline_parallel_degree": world_size,
                "microbatches": MICROBATCHES,
                "memory_weight": 1.0,
                "auto_partition": not architecture.places,
                "default_partition": 0,
                **architecture.settings,
            }
        )
        module = architecture.make()
        for name, part in module.named_modules():
            for pattern, place in architecture.places.items():
                if re.fullmatch(pattern, name):
                    smp.set_partition(part, place)
            if architecture.checkpointed and re.fullmatch(architecture.checkpointed, name):
                smp.set_activation_checkpointing(part)
        model = smp.DistributedModel(module)
        turns = [
            (_as_step(architecture, loss_of, model), smp.DistributedOptimizer(optimizer))
            for loss_of, optimizer in _turns(architecture, model)
        ]
        losses = []
        for batch in _batches(architecture):
            for step, optimizer in turns:
                model.zero_grad()
                losses.append(float(step(batch).reduce_mean()))
                optimizer.step()
        state = model.state_dict()  # of all ranks, gathered
        return Trained(
            losses,
            dict(state) if rank == 0 else {},
            held_bytes=_bytes(model.local_parameters()),
            generated=_generate_in_a_pipeline(architecture, model),
            warnings=heard.texts,
        )


def _turns(architecture: Architecture, model: Any) -> Iterator[tuple[Loss, torch.optim.Optimizer]]:
    """Each loss, with the optimizer of the parameters that it trains."""
    for prefix, loss_of in (architecture.turns or {"": architecture.loss}).items():
        named = model.named_parameters()
        chosen = [value for name, value in named if name.startswith(prefix)]
        yield loss_of, torch.optim.SGD(chosen, architecture.rate, MOMENTUM)


def _as_step(architecture: Architecture, loss_of: Loss, model: Any) -> Any:
    import smdistributed.modelparallel.torch as smp

    @smp.step
    def train(batch: Batch) -> Tensor:
        loss = loss_of(model, {**batch, **architecture.arguments})
        model.backward(loss)
        return loss

    return train


def _generate_in_a_pipeline(architecture: Architecture, model: Any) -> list[Tensor]:
    import smdistributed.modelparallel.torch as smp

    if not architecture.generate:
        return []
    model.eval()

    @smp.step
    def write(batch: Batch) -> Tensor:
        return _generate(architecture, model.get_module(), batch)

    return list(write(_batches(architecture)[0]))


def _generate(architecture: Architecture, model: Any, batch: Batch) -> Tensor:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    tokens: Tensor = model.generate(**inputs, **architecture.generate)
    return tokens


def _batches(architecture: Architecture) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [architecture.make_batch(BATCH, generator) for _ in range(STEPS)]


def _parts(batch: Batch) -> list[Batch]:
    cut = {name: tensor.chunk(MICROBATCHES) for name, tensor in batch.items()}
    return [{name: cut[name][number] for name in batch} for number in range(MICROBATCHES)]


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(value.numel() * value.element_size() for value in parameters)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() not in self.texts:
            self.texts.append(record.getMessage())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What libraries say about how a model could be faster here is not this program's subject."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
