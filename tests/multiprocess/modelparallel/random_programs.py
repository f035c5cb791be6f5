# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Programs drawn from a seed, for test_message_order.py: what a step function can do with modules.

Drawn are: what is called with what, here and inside of modules; what a module returns, changes in
its arguments or keeps in an attribute; who looks at which value, and when; how many losses go back,
and in which order.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 3
NUM_PARTS = 5
MOST_LOSSES = 3


@dataclasses.dataclass
class Holder:
    """No container that anybody knows."""

    value: Tensor
    name: str


def _append(y: Tensor, box: list[Any]) -> Tensor:
    box.append(y * 2)
    return y


def _change_in_place(y: Tensor, box: list[Any]) -> Tensor:
    box[0].add_(y.detach().sum())
    return y


RESULTS: dict[str, Callable[[Tensor, list[Any]], Any]] = {
    "tensor": lambda y, _: y,
    "pair": lambda y, _: (y, y * 2),
    "row": lambda y, _: [y, [y + 1, None]],
    "dict": lambda y, _: {"out": y, "size": y.shape, "none": None},
    "holder": lambda y, _: Holder(y, "held"),
    "detached": lambda y, _: (y, y.detach()),
    "number": lambda y, _: float(y.detach().sum()),
    "none": lambda y, _: None,
    "text": lambda y, _: "text",
    "size": lambda y, _: y.shape,
    "append": _append,
    "in_place": _change_in_place,
    "attribute": lambda y, _: y,
}


class Versatile(nn.Module):
    """Returns what its caller wants, and may ask an inner one for the same.

    Attributes:
        fault: what it does to what it computes.
    """

    fault: Callable[[Tensor], Tensor] | None = None

    def __init__(self, inner: Versatile | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.inner = inner
        self.kept = torch.zeros((), dtype=torch.float64)

    def forward(self, x: Tensor, kind: str, inner_kind: str, box: list[Any]) -> Any:
        y = torch.tanh(self.dense(x))
        if self.inner is not None:
            for tensor in called(self.inner, y, inner_kind, "tensor")[0]:
                y = y + tensor
        if self.fault is not None:
            y = self.fault(y)
        if kind == "attribute":
            self.kept = y.pow(2).mean()
        return RESULTS[kind](y, box)


def called(part: Any, x: Tensor, kind: str, inner_kind: str) -> tuple[list[Tensor], list[Any]]:
    """The tensors with a history that a call gives, and everything else."""
    box: list[Any] = [torch.ones(1, dtype=torch.float64)] if kind == "in_place" else []
    found = [part(x, kind, inner_kind, box), box]
    if kind == "attribute":
        found.append(part.kept)
    tensors: list[Tensor] = []
    others: list[Any] = []
    while found:
        each = found.pop(0)
        if isinstance(each, Holder):
            found = [each.value, each.name, *found]
        elif isinstance(each, dict):
            found = [*each.values(), *found]
        elif isinstance(each, (tuple, list)) and not isinstance(each, torch.Size):
            found = [*each, *found]
        elif isinstance(each, Tensor) and (kind, each.dim()) != ("in_place", 1):
            tensors.append(each if each.dim() else each + torch.zeros_like(x))
        else:
            others.append(each)
    return tensors, others


def _as_number(value: Any) -> float:
    if value is None:
        return -1.0
    if isinstance(value, (str, torch.Size, list)):
        return float(len(value))
    return float(value)


def parts() -> nn.ModuleList:
    """Some of them hold another one."""
    return nn.ModuleList(
        Versatile(Versatile() if number % 2 else None) for number in range(NUM_PARTS)
    )


def owners(made: nn.ModuleList, size: int) -> dict[nn.Module, int]:
    """Each has parts on all ranks, in turn."""
    found: dict[nn.Module, int] = {}
    for number, part in enumerate(made):
        assert isinstance(part, Versatile)
        found[part] = found[part.dense] = number % size
        if part.inner is not None:
            found[part.inner] = found[part.inner.dense] = (number // 2 + 1) % size
    return found


def random_program(seed: int) -> Callable[[Any, Tensor, Callable[[Tensor], None]], Any]:
    """The way of a microbatch through `net.versatile`."""

    def way(net: Any, x: Tensor, back: Callable[[Tensor], None]) -> Any:
        choose = random.Random(seed)
        values: list[Tensor] = [x]
        relatives: list[set[int]] = [set()]  # what has something in common; not the input
        seen: list[float] = []
        for _ in range(choose.randint(2, 6)):
            inputs = choose.sample(range(len(values)), min(len(values), choose.randint(1, 3)))
            given = functools.reduce(torch.add, [values[number] for number in inputs])
            if choose.random() < 0.1:
                given = given.detach()
            part = choose.choice(list(net.versatile))
            kinds = choose.choice(list(RESULTS)), choose.choice(list(RESULTS))
            with torch.set_grad_enabled(choose.random() > 0.1):
                tensors, others = called(part, given, *kinds)
            seen += [_as_number(each) for each in others]
            new = set(range(len(values), len(values) + len(tensors)))
            related = new.union(*(relatives[number] for number in inputs))
            relatives = [related if related & each else each for each in relatives]
            values += tensors
            relatives += [related] * len(tensors)
            if choose.random() < 0.15:
                seen.append(float(choose.choice(values).sum()))
        losses = _losses(choose, values, relatives)
        is_late = choose.random() < 0.5
        for loss in losses if is_late else reversed(losses):
            if loss.requires_grad:
                back(loss)
            if choose.random() < 0.15:
                seen.append(float(choose.choice(values).detach().sum()))
        return *losses, *seen, float(choose.choice(values).detach().sum())

    way.__name__ = f"random_program({seed})"
    return way


def _losses(choose: random.Random, values: list[Tensor], relatives: list[set[int]]) -> list[Tensor]:
    """Of what goes back once nothing must go back again: so they have nothing in common."""
    left = choose.sample(range(1, len(values)), len(values) - 1)
    losses: list[Tensor] = []
    while left and len(losses) < MOST_LOSSES:
        used = left[: choose.randint(1, len(left))]
        gone = set().union(*(relatives[number] for number in used))
        left = [number for number in left if number not in gone]
        losses.append(functools.reduce(torch.add, [values[n].pow(2).mean() for n in used]))
    return losses
