# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.amp.GradScaler` in one process: torch's, on the CPU (specification, section 4.9)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp

pytestmark = pytest.mark.usefixtures("alone")


def test_it_does_what_torchs_does() -> None:
    smp.init({"microbatches": 2})
    ours = smp.amp.GradScaler(init_scale=64.0, growth_interval=2)
    theirs = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    torch.manual_seed(0)
    plain = nn.Linear(3, 2)
    model = smp.DistributedModel(nn.Linear(3, 2))
    model.load_state_dict(plain.state_dict())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)

    @smp.step
    def train(model: Any, scaler: Any, x: torch.Tensor) -> None:
        model.backward(scaler.scale(model(x).pow(2).mean()))

    for number in range(6):
        x = torch.full((4, 3), float("inf") if number == 2 else number + 1.0)
        optimizer.zero_grad()
        train(model, ours, x)
        ours.step(optimizer)
        ours.update()
        reference.zero_grad()
        theirs.scale(plain(x).pow(2).mean()).backward()
        theirs.step(reference)
        theirs.update()
        assert ours.state_dict() == theirs.state_dict()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other)
    assert ours.get_scale() == 128.0
    assert pickle.loads(pickle.dumps(ours)).state_dict() == theirs.state_dict()


def test_a_rank_that_never_scales() -> None:
    smp.init({})
    scaler = smp.amp.GradScaler(8.0, 4.0, 0.25, 1)
    parameter = nn.Parameter(torch.ones(2))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    assert scaler.state_dict()["scale"] == 8.0
    parameter.grad = torch.full((2,), 8.0)
    scaler.unscale_(optimizer)
    assert torch.equal(parameter.grad, torch.ones(2))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter, torch.zeros(2))
    assert scaler.get_scale() == 32.0
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="has already been called"):
        scaler.unscale_(optimizer)
    parameter.grad = None
    later = smp.amp.GradScaler()
    later.step(optimizer)  # nothing here has a gradient
    later.update()
    later.update(2.0)
    assert later.get_scale() == 2.0


def test_inside_of_a_step() -> None:
    smp.init({})
    scaler = smp.amp.GradScaler()
    optimizer = smp.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0))

    @smp.step
    def inside(x: torch.Tensor) -> None:
        scaler.step(optimizer)

    with pytest.raises(RuntimeError, match="Move the call out of the function"):
        inside(torch.ones(1))
