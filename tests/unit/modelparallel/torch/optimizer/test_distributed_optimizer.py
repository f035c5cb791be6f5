# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedOptimizer` in one process, where everything is here (specification, 4.5)."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR, StepLR

import smdistributed.modelparallel.torch as smp

pytestmark = pytest.mark.usefixtures("alone")


def trained(optimizer: Any, model: nn.Module, count: int = 3) -> list[Tensor]:
    for number in range(count):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(number + 1))).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return plain, copy.deepcopy(plain)


def test_it_is_the_same_object_and_trains_as_before() -> None:
    plain, inner = pair()
    smp.init({})
    model = smp.DistributedModel(inner)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    assert smp.DistributedOptimizer(optimizer, static_loss_scale=2.0, verbose=True) is optimizer
    reference = torch.optim.Adam(plain.parameters(), lr=0.1)
    for one, other in zip(trained(optimizer, model), trained(reference, plain), strict=True):
        assert torch.equal(one, other)
    state = optimizer.state_dict()
    assert (
        state["state"][0]["exp_avg"]
        is optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"]
    ), "the optimizer's own, as in torch"
    assert state.keys() == {"state", "param_groups"}
    local = optimizer.local_state_dict()
    assert local.pop("_smp_is_partial") is True
    assert local.keys() == state.keys()
    fresh = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.5))
    fresh.load_state_dict({**copy.deepcopy(local), "_smp_is_partial": True})
    assert fresh.param_groups[0]["lr"] == 0.1
    assert torch.equal(
        fresh.state_dict()["state"][2]["exp_avg_sq"], state["state"][2]["exp_avg_sq"]
    )
    pickle.dumps(fresh)
    assert copy.deepcopy(fresh).param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: StepLR(o, 1, gamma=0.5),
        lambda o: SequentialLR(o, [StepLR(o, 1), StepLR(o, 2)], milestones=[1]),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        ReduceLROnPlateau,
    ],
)
@pytest.mark.filterwarnings("error:Detected call of")
@pytest.mark.parametrize("before", [False, True])
def test_schedulers(schedule: Callable[[Any], Any], before: bool) -> None:
    smp.init({})
    _, model = pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = schedule(optimizer) if before else None
    smp.DistributedOptimizer(optimizer)
    assert optimizer.step.__func__ is not None
    assert optimizer.step.__self__ is optimizer
    scheduler = scheduler or schedule(optimizer)
    for _ in range(3):
        trained(optimizer, model, 1)
        scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))


def test_zero_grad_in_both_dialects() -> None:
    smp.init({})
    _, model = pair()
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for arguments in ({"set_to_none": False}, {"set_grads_to_None": False}):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.zero_grad(**arguments)
        assert all(not each.grad.any() for each in model.parameters())
    for arguments in ({}, {"set_to_none": True}, {"set_grads_to_None": True}):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.zero_grad(**arguments)
        assert all(each.grad is None for each in model.parameters())


class Bare:
    """The least that is accepted."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]

    def step(self) -> int:
        return 7

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_an_optimizer_that_is_not_torchs() -> None:
    smp.init({})
    _, model = pair()
    optimizer = smp.DistributedOptimizer(Bare(list(model.parameters())))
    model(torch.ones(1, 4)).sum().backward()
    assert optimizer.step() == 7
    optimizer.zero_grad(set_to_none=False)
    assert all(not each.grad.any() for each in model.parameters())
    optimizer.zero_grad()
    assert all(each.grad is None for each in model.parameters())
    with pytest.raises(TypeError, match="has no load_state_dict"):
        optimizer.load_state_dict({})


def test_closures_and_lbfgs() -> None:
    smp.init({})
    plain, inner = pair()
    model = smp.DistributedModel(inner)
    optimizer = smp.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4))
    reference = torch.optim.LBFGS(plain.parameters(), max_iter=4)

    def closure(which: nn.Module, whose: Any) -> Callable[[], Tensor]:
        def run() -> Tensor:
            whose.zero_grad()
            loss: Tensor = which(torch.ones(2, 4)).pow(2).mean()
            loss.backward()
            return loss

        return run

    assert optimizer.step(closure(model, optimizer)) == reference.step(closure(plain, reference))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert optimizer.step(closure=closure(model, optimizer)) is not None


def test_hooks_of_the_optimizer_see_its_own_dictionaries() -> None:
    smp.init({})
    _, model = pair()
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("step"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(state["more"]))
    optimizer.step()
    assert optimizer.local_state_dict()["more"] == 1
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["step", 1]


def test_errors() -> None:
    _, model = pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(smp.SMPNotInitialized):
        smp.DistributedOptimizer(optimizer)
    smp.init({})
    with pytest.raises(TypeError, match=r"Pass one of torch\.optim"):
        smp.DistributedOptimizer(model)
    smp.DistributedOptimizer(optimizer)

    @smp.step
    def inside(optimizer: Any, x: Tensor) -> None:
        optimizer.step()

    with pytest.raises(RuntimeError, match="Move it out of the function"):
        inside(optimizer, torch.ones(1))
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})


def test_optimizers_do_not_live_for_ever() -> None:
    smp.init({})
    first = smp.DistributedOptimizer(torch.optim.SGD(pair()[0].parameters(), lr=0.1))
    smp.DistributedOptimizer(torch.optim.SGD(pair()[0].parameters(), lr=0.1))
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    assert smp.state.optimizer is None  # nobody has held the second one


def test_an_optimizer_is_of_the_model_whose_parameters_it_has() -> None:
    smp.init({})
    net, other = pair()
    model = smp.DistributedModel(net)
    first = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    del model
    gc.collect()
    again = smp.DistributedModel(net)
    assert smp.state.optimizer is first
    del again
    gc.collect()
    later = smp.DistributedModel(other)
    assert smp.state.optimizer is None
    assert first.param_groups  # somebody holds it
    del later
    gc.collect()
    early = smp.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    again = smp.DistributedModel(net)
    assert smp.state.optimizer is early
    assert again.get_module() is net


def test_fp32_weights_of_16_bit_training_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    smp.init({})
    model = smp.DistributedModel(nn.Linear(2, 2))
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    state = optimizer.state_dict()
    with caplog.at_level("WARNING", logger="smdistributed"):
        optimizer.load_state_dict(state)
        assert not caplog.records
        optimizer.load_state_dict({**state, "fp16_states": {"masters": {}}})
    assert "fp32 weights, as of 16-bit training" in caplog.text
