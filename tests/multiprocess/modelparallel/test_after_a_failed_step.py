# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a script with replicas is told when a step has failed, and when it goes on all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 2
WIDTH = 4


class Fails(torch.autograd.Function):
    """In its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise ValueError("a bad gradient")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, is_bad: bool = False) -> Tensor:
        y: Tensor = self.dense(x)
        return Fails.apply(y) if is_bad else y  # type: ignore[no-any-return, no-untyped-call]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = Layer(), Layer(), Layer()

    def forward(self, x: Tensor, is_bad: bool) -> Tensor:
        y: Tensor = self.last(self.middle(self.first(x), is_bad))
        return y


def told_by(error: BaseException) -> str:
    return "".join([str(error), *getattr(error, "__notes__", ())])


def failures(rank: int, world_size: int, partitions: int) -> None:
    import smdistributed.modelparallel.torch as smp

    def begin() -> smp.DistributedModel:
        smp.reset()
        smp.init(
            {
                "partitions": partitions,
                "microbatches": MICROBATCHES,
                "active_microbatches": 1,  # so that the second is the last one to go back
                "ddp": True,
                "auto_partition": False,
                "default_partition": 0,
            }
        )
        net = Net()
        smp.set_partition(net.middle, partitions - 1)
        model = smp.DistributedModel(net)
        train(model, [False] * MICROBATCHES)
        return model

    @smp.step
    def backwards(model: smp.DistributedModel, x: Tensor, is_bad: Tensor, goes_on: bool) -> Tensor:
        if bool(is_bad):
            try:
                model.backward(model(x, True).sum())
            except ValueError:
                if not goes_on:
                    raise
        loss = model(x, False).sum()
        model.backward(loss)
        return loss.detach()

    def train(model: smp.DistributedModel, are_bad: list[bool], goes_on: bool = False) -> None:
        backwards(model, torch.ones(MICROBATCHES, WIDTH), torch.tensor(are_bad), goes_on)

    # One replica fails.
    model = begin()
    with pytest.raises(Exception, match="a bad gradient") as raised:
        train(model, [smp.dp_rank() == 0] * MICROBATCHES)
    told = told_by(raised.value)
    assert "because of StepAborted" not in told
    assert "says: StepAborted" not in told
    for _ in range(2):
        with pytest.raises(Exception, match="a bad gradient") as raised:
            train(model, [False] * MICROBATCHES)
        told = told_by(raised.value)
        assert "smp.reset()" in told, told
        assert "find_unused_parameters" not in told, told

    # One microbatch goes back again, when the step's gradients are being averaged.
    del model, raised
    model = begin()
    with pytest.raises(Exception, match="ready only once") as raised:
        train(model, [False, True], goes_on=True)
    assert "overlapping_allreduce=False" in told_by(raised.value)
    del model, raised
    begin()


@pytest.mark.parametrize("partitions", [1, 2])
def test_texts_after_a_failed_step(partitions: int) -> None:
    """The rank that had failed was told of unused parameters; a second pass, of shared ones."""
    run_ranks(failures, 2 * partitions, partitions, deadline_s=DEADLINE_S)
