# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluations between training steps, by a function of their own or by that of training."""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 4
WIDTH = 4


class Layer(nn.Module):
    """Keeps a loss in training and none in an evaluation, and a sum, if it is to, always."""

    def __init__(self, inner: Layer | None = None, has_sum: bool = False) -> None:
        super().__init__()
        self.has_sum = has_sum
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.inner = inner
        self.loss: Tensor | None = None
        self.last = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.loss = None
        y = torch.tanh(self.dense(x))
        if self.training:
            self.loss = y.pow(2).mean()
        if self.has_sum:
            self.last = y.sum().detach()
        return y if self.inner is None else y + self.inner(y)


def layers_of(net: nn.Module) -> list[Layer]:
    return [module for module in net.modules() if isinstance(module, Layer)]


def outcome(net: nn.Module, y: Tensor) -> Tensor:
    """With what modules keep, read after all of them have run."""
    total = y.pow(2).mean()
    for layer in layers_of(net):
        total = total + (10.0 if layer.loss is None else layer.loss)
    if not torch.is_grad_enabled():
        total = total + layers_of(net)[0].last
    return total


def alternating(rank: int, world_size: int, order: str, has_own_function: bool) -> None:
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline

    smp.init(
        {
            "partitions": world_size,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net, whole = (
        nn.Sequential(Layer(has_sum=True), Layer(Layer()), Layer(), Layer(Layer()), Layer())
        for _ in range(2)
    )
    whole.load_state_dict(net.state_dict())
    for number in (1, 3):
        smp.set_partition(net[number], 1)
        inner = net[number].inner
        assert isinstance(inner, Layer)
        smp.set_partition(inner, world_size - 1)
    model = smp.DistributedModel(net)

    def body(x: Tensor, is_training: bool) -> Tensor:
        loss = outcome(net, model(x))
        if is_training:
            model.backward(loss)
        return loss.detach()

    train = smp.step(body)
    evaluate = smp.step(body) if has_own_function else train
    under_way = {}
    for number, each in enumerate(order):
        is_training = each == "t"
        model.train(is_training)
        whole.train(is_training)
        model.zero_grad()
        whole.zero_grad()
        batch = torch.randn(
            MICROBATCHES * 2, WIDTH, generator=torch.Generator().manual_seed(number)
        )
        with contextlib.nullcontext() if is_training else torch.no_grad():
            found = (train if is_training else evaluate)(batch, is_training).outputs
            for mine, x in zip(found, batch.chunk(MICROBATCHES), strict=True):
                expected = outcome(whole, whole(x))
                if is_training:
                    (expected / MICROBATCHES).backward()  # type: ignore[no-untyped-call]
                assert torch.allclose(mine, expected, atol=1e-5), (number, each, mine, expected)
        for name, parameter in model.local_named_parameters() if is_training else ():
            wanted = whole.get_parameter(name.removeprefix("module.")).grad
            assert torch.allclose(parameter.grad, wanted, atol=1e-5), (number, name)
        under_way[each] = current_pipeline("a test").peak_microbatches
    if rank == 0:
        assert under_way["e"] == 1
        assert under_way["t"] > 1, "training goes on side by side after an evaluation"


@pytest.mark.parametrize("has_own_function", [True, False])
@pytest.mark.parametrize(("order", "ranks"), [("etett", 2), ("tetet", 2), ("etett", 3)])
def test_evaluations_between_training_steps(order: str, ranks: int, has_own_function: bool) -> None:
    """With one function the first evaluation mixed microbatches, and training was in single file.

    An evaluation before training, whose modules then took back what training had set, was an error.
    """
    run_ranks(alternating, ranks, order, has_own_function, deadline_s=DEADLINE_S)
