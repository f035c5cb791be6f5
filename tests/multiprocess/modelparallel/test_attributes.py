# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What modules keep in their attributes during a step reaches who reads it, as in one process.

Up to 2.0.0 the microbatches of a rank read one another's values, and a caller on another rank read
what its own copy of the module had been made with.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 4


class Experts(nn.Module):
    """Keeps a loss of its own, one in a list, and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.aux_loss = torch.zeros(())
        self.parts: list[Tensor] = []
        self.mean = torch.zeros(8)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(x), -1)
        self.aux_loss = (weights.mean(0) ** 2).sum()
        self.parts = []
        self.parts.append(weights.std())
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        self.calls += 1
        return weights * x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.experts = nn.ModuleList(Experts() for _ in range(2))
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for experts in self.experts:
            x = experts(x)
        result: Tensor = self.last(torch.relu(self.middle(x)))
        return result

    def aux_loss(self) -> Tensor:
        total = torch.zeros(())
        for experts in self.experts:
            assert isinstance(experts, Experts)
            total = total + experts.aux_loss + experts.parts[0]
        return total


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def loss_of(call: Any, net: Net, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(call(x).clone(), y) + net.aux_loss()


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def trained(
    rank: int, size: int, places: dict[str, int], pipeline: str
) -> tuple[dict[str, bool], bool, list[str], int]:
    import smdistributed.modelparallel.torch as smp

    warnings = _Warnings()
    logging.getLogger("smdistributed").addHandler(warnings)
    smp.init({"partitions": size, "microbatches": MICROBATCHES, "auto_partition": False,
              "default_partition": 0, "pipeline": pipeline})  # fmt: skip
    net, reference = made(), made()
    for name, place in places.items():
        smp.set_partition(net.get_submodule(name), place)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model, net, x, y)
        model.backward(loss)
        return loss.detach()

    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        x = torch.randn(8, 4, generator=generator)
        y = torch.randn(8, 2, generator=generator)
        optimizer.zero_grad()
        losses.append(train(x, y).reduce_mean())
        optimizer.step()
        plain.zero_grad()
        for part in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            loss = loss_of(reference, reference, *part) / MICROBATCHES
            loss.backward()
            losses[-1] = losses[-1] - loss.detach()
        plain.step()
    wanted = dict(reference.named_parameters())
    same = {
        name: torch.allclose(mine, wanted[name], atol=1e-6)
        for name, mine in model.local_named_parameters()
    }
    same |= {
        f"{name}.mean": torch.allclose(part.mean, reference.get_submodule(name).mean)
        for name, part in model.local_named_modules()
        if isinstance(part, Experts)
    }
    calls = sum(part.calls for _, part in model.local_named_modules() if isinstance(part, Experts))
    is_equal = all(abs(float(loss)) < 1e-5 for loss in losses)
    return same, is_equal, warnings.texts, calls


PLACES = {
    "here": {"middle": 1},
    "there": {"middle": 1, "experts.0": 1, "experts.1": 1},
    "both": {"middle": 1, "experts.1": 1},
    "apart": {"experts.0": 1, "experts.1": 2, "middle": 1},
}


@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize("where", PLACES)
def test_a_loss_kept_in_an_attribute_is_that_of_the_microbatch(where: str, pipeline: str) -> None:
    places = PLACES[where]
    size = 1 + max(places.values())
    results = run_ranks(trained, size, places, pipeline, deadline_s=DEADLINE_S)
    for rank, (same, is_equal, warnings, _) in enumerate(results):
        assert all(same.values()), (rank, same)
        assert is_equal
        told = [text for text in warnings if "'aux_loss'" in text]
        is_owner = rank > 0 and any(places.get(f"experts.{n}") == rank for n in range(2))
        assert bool(told) == is_owner, warnings
        means = [text for text in warnings if "'mean'" in text]
        assert all("Return the value" in text or "take turns" in text for text in means)
        assert bool(means) or not is_owner
    assert sum(result[3] for result in results) == 2 * 3 * MICROBATCHES


class Sometimes(nn.Module):
    """Keeps its loss only if its input says so."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)
        self.aux_loss = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dense(x)
        if float(x.sum()) > 100:
            self.aux_loss = result.sum()
        return result


def sometimes(rank: int, size: int) -> str:
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": 1, "auto_partition": False, "default_partition": 0})
    net = nn.Sequential(nn.Linear(4, 4), Sometimes())
    smp.set_partition(net[1], 1)
    model = smp.DistributedModel(net)

    @smp.step
    def evaluate(x: Tensor) -> Any:
        return model(x)

    nn.init.eye_(net[0].weight)
    evaluate(torch.zeros(1, 4))
    try:
        evaluate(torch.full((1, 4), 1000.0))
    except Exception as error:
        return str(error)
    return ""


def test_an_attribute_set_by_some_calls_only_is_an_error() -> None:
    for text in run_ranks(sometimes, 2, deadline_s=DEADLINE_S):
        assert "its attribute 'aux_loss'" in text
        assert "other than at earlier calls" in text


class Collecting(nn.Module):
    """Replaces the `forward` of a part for its own call, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Linear(4, 4)
        self.far = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        collected = []
        original = self.near.forward

        def collecting(x: Tensor) -> Tensor:
            collected.append(original(x))
            return collected[-1]

        self.near.forward = collecting  # type: ignore[method-assign]
        y = self.near(self.far(x).clone())  # which waits, so that another microbatch runs
        z = self.near(self.far(y).clone())
        self.near.forward = original  # type: ignore[method-assign]
        result: Tensor = z + torch.stack(collected).sum(0)
        return result


def collects(rank: int, size: int) -> tuple[float, int]:
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": MICROBATCHES, "auto_partition": False,
              "default_partition": 0})  # fmt: skip
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), Collecting())
    inner = net[1]
    assert isinstance(inner, Collecting)
    smp.set_partition(inner.far, 1)
    x = torch.randn(8, 4)
    with torch.no_grad():
        wanted = net(x)
    model = smp.DistributedModel(net)

    @smp.step
    def evaluate(x: Tensor) -> Any:
        result = model(x)
        model.backward(result.sum())
        return result.detach()

    worst = max(float((evaluate(x).concat() - wanted).abs().max()) for _ in range(3))
    depth, function = 0, inner.near.forward
    while getattr(function, "__closure__", None):
        depth, function = depth + 1, function.__closure__[-1].cell_contents  # type: ignore[union-attr]
    return worst, depth


def test_a_forward_replaced_here_is_that_of_the_microbatch() -> None:
    """In 2.0.0 a microbatch wrapped the wrapper of another one that waited, without a word."""
    for worst, depth in run_ranks(collects, 2, deadline_s=DEADLINE_S):
        assert worst < 1e-5
        assert depth == 0, "it was put back"
