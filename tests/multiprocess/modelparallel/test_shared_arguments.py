# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An object that a model keeps, and that its modules on two ranks change, beside one process.

So does a cache of a fixed size that `generate()` of transformers keeps from call to call.
Microbatches that overlap went on with values of one another, without a word.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn

MICROBATCHES = 4
WIDTH = 4


class Box:
    """A row of sums, one for each layer: in place, as a cache has it, or made anew."""

    def __init__(self) -> None:
        self.sums = [torch.zeros(WIDTH) for _ in range(3)]
        self.calls: list[int] = []

    def reset(self, way: str) -> None:
        self.calls.clear()
        if way == "in place":
            for each in self.sums:
                each.zero_()


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.number = number

    def forward(self, x: Tensor, box: Box, way: str) -> Tensor:
        y: Tensor = self.dense(x).tanh()
        if way == "in place":
            box.sums[self.number].add_(y.detach().sum(0))
        elif way == "list":
            box.calls.append(round(float(y.detach().sum()) * 1000))
        return y


class Net(nn.Module):
    """Its second layer runs on another rank; the first one has changed the box by then."""

    def __init__(self, way: str, keeps: bool) -> None:
        super().__init__()
        self.way = way
        self.layers = nn.ModuleList(map(Layer, range(3)))
        self.box = Box() if keeps else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        box = Box() if self.box is None else self.box
        box.reset(self.way)
        for layer in self.layers:
            x = layer(x, box, self.way)
        return x, torch.cat([*box.sums, torch.tensor(box.calls)])


def _make(way: str, keeps: bool) -> Net:
    torch.manual_seed(0)
    return Net(way, keeps)


def _batch() -> Tensor:
    return torch.randn(2 * MICROBATCHES, WIDTH, generator=torch.Generator().manual_seed(1))


def run(rank: int, world_size: int, way: str, keeps: bool, **options: Any) -> list[Tensor]:
    """What the box holds at the end of each microbatch, in two steps."""
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "pipeline_parallel_degree": world_size,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
            **options,
        }
    )
    net = _make(way, keeps)
    smp.set_partition(net.layers[1], 1)
    model = smp.DistributedModel(net)

    @smp.step
    def step(x: Tensor) -> Tensor:
        y, held = model(x)
        model.backward(y.square().mean())
        return held.clone()

    return [held for _ in range(2) for held in step(_batch())]


def _wanted(way: str, keeps: bool) -> list[Tensor]:
    net = _make(way, keeps)
    return [net(x)[1].clone() for _ in range(2) for x in _batch().chunk(MICROBATCHES)]


@pytest.mark.parametrize("way", ["in place", "list", "nothing"])
def test_an_object_of_each_microbatch_is_its_own(way: str) -> None:
    for found in run_ranks(run, 2, way, False):
        torch.testing.assert_close(found, _wanted(way, False))


@pytest.mark.parametrize("way", ["in place", "list"])
def test_microbatches_one_after_the_other_share_an_object(way: str) -> None:
    for found in run_ranks(run, 2, way, True, active_microbatches=1):
        torch.testing.assert_close(found, _wanted(way, True))


@pytest.mark.parametrize("way", ["in place", "list"])
def test_microbatches_that_overlap_do_not_share_an_object(way: str) -> None:
    outcomes = run_ranks(run, 2, way, True, check=False)
    error = outcomes[0].error
    assert error is not None
    assert error.type_name == "SMPError"
    assert (
        "main/layers/1 on rank 1 of the pipeline changed something in its arguments"
        in error.message
    )
    assert "another microbatch changed its argument 'box' too" in error.message


class Counting(nn.Module):
    """Changes what it is given, on another rank: a running mean, a count."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mean: Tensor, counts: dict[str, int] | None) -> Tensor:
        mean.mul_(0.9).add_(x.detach().mean())
        if counts is not None:
            counts["calls"] += 1
        y: Tensor = self.dense(x)
        return y


def counted(rank: int, world_size: int, has_counts: bool, active: int) -> tuple[float, int]:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "pipeline_parallel_degree": world_size,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
            "active_microbatches": active,
        }
    )
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Counting())
    smp.set_partition(net[1], 1)
    model = smp.DistributedModel(net)
    mean, counts = torch.zeros(()), {"calls": 0}

    @smp.step
    def step(x: Tensor) -> None:
        model.backward(net[1](net[0](x), mean, counts if has_counts else None).sum())

    step(torch.ones(2 * MICROBATCHES, WIDTH))
    return float(mean), counts["calls"]


@pytest.mark.parametrize("has_counts", [False, True])
def test_what_another_microbatch_has_added_is_not_lost(has_counts: bool) -> None:
    outcomes = run_ranks(counted, 2, has_counts, MICROBATCHES, check=False)
    error = outcomes[0].error
    assert error is not None
    assert "another microbatch changed its argument" in error.message
    mean, calls = run_ranks(counted, 2, True, 1)[0]
    assert calls == MICROBATCHES
    assert mean != 0.0
