# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for each of the fused optimizers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

import smdistributed.modelparallel.torch as smp
from tests.unit.modelparallel.torch.optimizer.fused.steps import parameters, set_gradients

KINDS: list[Any] = [
    smp.optimizers.FusedAdam,
    smp.optimizers.FusedLAMB,
    smp.optimizers.FusedNovoGrad,
]
Make = Callable[..., Any]

every = pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.__name__)


def run(optimizer: Any, given: list[nn.Parameter], steps: range) -> None:
    for number in steps:
        set_gradients(given, number)
        optimizer.step()


def assert_equal(found: list[nn.Parameter], expected: list[nn.Parameter]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@every
def test_amsgrad_is_refused(make: Make) -> None:
    with pytest.raises(RuntimeError, match="amsgrad=True; expected False"):
        make(parameters(), amsgrad=True)


@every
@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("eps", -1e-8), ("weight_decay", -0.1), ("betas", (0.9, 1.0))],
)
def test_options_out_of_range(make: Make, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; expected 0 or more"):
        make(parameters(), **{name: value})
    with pytest.raises(ValueError, match=f"{name} is .*; expected 0 or more"):
        make([{"params": parameters(), name: value}])


def test_options_of_one_kind() -> None:
    with pytest.raises(ValueError, match="norm_type is 1; expected 2, or 0 or infinity"):
        smp.optimizers.FusedNovoGrad(parameters(), norm_type=1)
    with pytest.raises(ValueError, match=r"max_grad_norm is -1\.0; expected 0 or more"):
        smp.optimizers.FusedLAMB(parameters(), max_grad_norm=-1.0)


@every
def test_zero_grad(make: Make) -> None:
    given = parameters()
    for set_grad_none, arguments, expects_none in (
        (True, {}, True),
        (True, {"set_to_none": False}, False),
        (False, {}, False),
        (False, {"set_to_none": True}, False),
    ):
        set_gradients(given, 0)
        make(given, set_grad_none=set_grad_none).zero_grad(**arguments)
        for each in given:
            assert (each.grad is None) is expects_none
            assert each.grad is None or not each.grad.any()


@every
def test_what_it_cannot_update(make: Make) -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = make(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"torch\.sparse_coo.*torch\.optim\.SparseAdam"):
        optimizer.step()
    complex_one = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    complex_one.grad = torch.zeros_like(complex_one)
    with pytest.raises(RuntimeError, match=r"torch\.complex64; expected float16"):
        make([complex_one]).step()


@every
def test_a_closure_computes_gradients(make: Make) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = make([weight], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert optimizer.step(closure).item() < 3.0


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_memory_in_another_order(make: Make, dtype: torch.dtype) -> None:
    """Of parameters, gradients and loaded states: the same numbers as of contiguous ones."""
    start = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    images = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    plain = [nn.Parameter(start.clone()) for _ in range(4)]
    plain += [nn.Parameter(images.clone()), nn.Parameter(start[:, :1].clone())]
    wide = torch.zeros(6, 16, dtype=dtype)
    wide[:, ::2] = start
    other = [
        nn.Parameter(start.t().contiguous().t()),
        nn.Parameter(wide[:, ::2]),
        nn.Parameter(start.clone()),
        nn.Parameter(start.t().contiguous().t()),
        nn.Parameter(images.to(memory_format=torch.channels_last)),
        nn.Parameter(wide.clone()[:, 0:1]),
    ]
    first, second = make(plain, lr=0.01), make(other, lr=0.01)
    for number in range(6):
        set_gradients(plain, number)
        set_gradients(other, number)
        for place in (0, 1, 2, 4):  # the others' are contiguous, whatever the parameter is
            gradient = other[place].grad
            assert gradient is not None
            other[place].grad = gradient.transpose(0, 1).contiguous().transpose(0, 1)
        first.step()
        second.step()
        if number == 2:
            second.load_state_dict(copy.deepcopy(first.state_dict()))
    for ours, theirs in zip(other, plain, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)
    assert not wide[:, 1::2].any(), "what lies between the parameter's elements"


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_state_is_saved_and_loaded(make: Make, dtype: torch.dtype) -> None:
    given = parameters(dtype=dtype)
    optimizer = make(given, lr=0.01)
    run(optimizer, given, range(3))
    stored = io.BytesIO()
    torch.save(optimizer.state_dict(), stored)
    again = copy.deepcopy(given)
    run(optimizer, given, range(3, 6))

    stored.seek(0)
    loaded = make(again, lr=0.5)
    loaded.load_state_dict(torch.load(stored))
    assert loaded.param_groups[0]["lr"] == 0.01
    run(loaded, again, range(3, 6))
    assert_equal(again, given)
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    for state in loaded.state.values():
        assert {each.dtype for each in state.values()} == {expected}


@every
def test_groups_of_several_dtypes_are_loaded_by_their_order(make: Make) -> None:
    given = [*parameters(dtype=torch.bfloat16), *parameters()]
    groups = [{"params": given[3:12]}, {"params": [*given[:3], *given[12:]]}]
    optimizer = make(groups)
    run(optimizer, given, range(2))
    before = {each: dict(optimizer.state[each]) for each in given}
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, state in before.items():
        for key, value in state.items():
            assert optimizer.state[each][key].dtype is value.dtype
            assert torch.equal(optimizer.state[each][key], value)


@every
def test_copies_and_pickles(make: Make) -> None:
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    if make is smp.optimizers.FusedNovoGrad:
        options["reg_inside_moment"] = True
    else:
        options["adam_w_mode"] = False
    given = parameters()
    optimizer = make(given, **options)
    run(optimizer, given, range(2))
    copied = copy.deepcopy(optimizer)
    thawed = pickle.loads(pickle.dumps(optimizer))
    run(optimizer, given, range(2, 4))
    for other in (copied, thawed):
        theirs = other.param_groups[0]["params"]
        run(other, theirs, range(2, 4))
        assert_equal(theirs, given)


@every
def test_schedulers_and_apex_s_count(make: Make) -> None:
    """Schedulers of NVIDIA's BERT scripts read `step` of the first group."""
    given = parameters()
    optimizer = make([{"params": given[:2]}, {"params": given[2:], "lr": 0.5}], lr=0.1)
    schedulers = [
        StepLR(optimizer, 2),
        LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        CosineAnnealingLR(optimizer, 10),
    ]
    for _ in range(3):
        set_gradients(given, 0)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert [group["step"] for group in optimizer.param_groups] == [3, 3]
    assert optimizer.param_groups[0]["lr"] < 0.1
    loaded = make([{"params": given[:2]}, {"params": given[2:]}])
    loaded.load_state_dict(optimizer.state_dict())
    assert [group["step"] for group in loaded.param_groups] == [3, 3]


@every
def test_a_rate_of_zero_moves_nothing(make: Make) -> None:
    given = parameters()
    start = copy.deepcopy(given)
    optimizer = make(given, lr=0.0, weight_decay=0.1)
    run(optimizer, given, range(2))
    assert_equal(given, start)
    assert all(state["exp_avg"].any() for each, state in optimizer.state.items() if each.numel())


@every
def test_it_trains(make: Make) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(64, 8)
    y = x[:, :1] * x[:, 1:2]
    # NovoGrad divides by the norm of a whole tensor, so its steps are shorter.
    lr = 0.2 if make is smp.optimizers.FusedNovoGrad else 0.02
    optimizer = make(network.parameters(), lr=lr)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@every
def test_a_gradient_scaler_skips_steps(make: Make) -> None:
    given = parameters([(4,)])
    start = given[0].detach().clone()
    optimizer = make(given, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    given[0].grad = torch.tensor([1.0, float("inf"), 0.0, 0.0])
    scaler.step(optimizer)
    assert torch.equal(given[0], start)
    assert "step" not in optimizer.param_groups[0]
