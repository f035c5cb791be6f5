# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a row of docs/architectures.md is: a public model, small, with random weights, and a step.

    architecture = architectures()["gpt2"]
    model = architecture.make()                       # the same weights every time, no dropout
    batch = architecture.make_batch(8, generator)     # tensors whose first axis is the batch
    loss = architecture.loss(model, batch)            # what a step function computes

Each module that `FILES` names holds rows as data, `ROWS`, under a `TITLE`. The models are made from
configurations, so nothing is downloaded. Importing this imports no library: `make()` does.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

FILES = (
    "decoders",
    "encoders",
    "encoder_decoders",
    "experts",
    "vision",
    "timm_models",
    "audio",
    "diffusion",
    "own_networks",
    "ways",
    "generation",
)

Batch = dict[str, Any]
MakeBatch = Callable[[int, Generator], Batch]
Loss = Callable[[Any, Batch], Tensor]


def own_loss(model: Any, batch: Batch) -> Tensor:
    """Of transformers' models, which compute it from the labels among their arguments."""
    loss: Tensor = model(**batch).loss
    return loss


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model and how it is trained.

    Attributes:
        name: in the table, and on the command line.
        model: what makes it, as "package.Class".
        sizes: what it is made from: arguments of its configuration, or of the model itself.
        make_batch: for a batch size, arguments of the model, cut along their first axis.
        loss: a mean over a microbatch.
        arguments: more arguments of the model, the same in each microbatch.
        turns: by name of a module, a loss by which its parameters alone are trained; all of them
            in turn, with an optimizer each. Without any, `loss` trains all parameters.
        rate: of learning, small enough that a rounding does not grow until the last step.
        generate: arguments of the model's `generate()` after training; none is not called.
        prepare: changes the model, in one process as over ranks.
        checkpointed: modules that `smp.set_activation_checkpointing` is called for, a pattern of
            their names.
        places: partitions by hand, of modules whose names match a pattern; the last one counts.
            Without any, the library decides.
        settings: of `smp.init`, beside those of all rows.
        refused: a pattern of the library's error, where an error is right.
        needs: a package beside that of `model`.
        remark: what this row is there to show.
    """

    name: str
    model: str
    sizes: Mapping[str, Any]
    make_batch: MakeBatch
    loss: Loss = own_loss
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    turns: Mapping[str, Loss] = dataclasses.field(default_factory=dict)
    rate: float = 0.05
    generate: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prepare: Callable[[Any], None] | None = None
    checkpointed: str = ""
    places: Mapping[str, int] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refused: str = ""
    needs: str = ""
    remark: str = ""

    @property
    def library(self) -> str:
        """The package without which the row is left out."""
        return self.needs or self.model.partition(".")[0]

    @property
    def title(self) -> str:
        """Of the model, in the table."""
        return str(self.sizes.get("name", self.model.rpartition(".")[2]))

    def make(self) -> nn.Module:
        """The model, in training mode, with the same weights every time and without dropout."""
        module, _, name = self.model.rpartition(".")
        make = getattr(importlib.import_module(module), name)
        torch.manual_seed(0)
        config = getattr(make, "config_class", None)
        model: nn.Module = make(**self.sizes) if config is None else make(config(**self.sizes))
        _turn_off_dropout(model.train())
        if self.prepare is not None:
            self.prepare(model)
        return model


def _turn_off_dropout(model: nn.Module) -> None:
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, float) and "drop" in name:
                    setattr(holder, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def freeze_averages(model: Any) -> None:
    """BatchNorm as in evaluation.

    In training, where few values of a microbatch are left to it, a rounding in one process grows to
    a hundredth of the loss in three steps.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def sections() -> dict[str, tuple[Architecture, ...]]:
    """All rows, by the title that they stand under."""
    files = [importlib.import_module(f"tests.architectures.{name}") for name in FILES]
    return {file.TITLE: file.ROWS for file in files}


def architectures() -> dict[str, Architecture]:
    """All rows, by name."""
    rows = [row for some in sections().values() for row in some]
    known = {row.name: row for row in rows}
    if len(known) < len(rows):
        raise ValueError("a name stands twice in the table; give one row another name.")
    return known
