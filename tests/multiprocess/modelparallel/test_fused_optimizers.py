# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers` and `smp.nn.FusedLayerNorm` in a model on two ranks.

Specification, section 4.10. The reference is the same optimizer on the whole model in one process,
which the unit tests compare with plain arithmetic. One start serves all checks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from harness import run_ranks
from parted_models import Network, batch, by_hand, cut, network, plain_step, step_function
from torch import nn

DEADLINE_S = 60.0
STEPS = 4
# Of float64, over sums of microbatches in another order.
CLOSE = {"rtol": 1e-6, "atol": 1e-9}


def optimizers(smp: Any) -> dict[str, Callable[[list[nn.Parameter]], Any]]:
    of = smp.optimizers
    return {
        "Adam": lambda p: of.FusedAdam(p, lr=0.01, weight_decay=0.1),
        "Adam, L2": lambda p: of.FusedAdam(p, lr=0.01, weight_decay=0.1, adam_w_mode=False),
        "LAMB": lambda p: of.FusedLAMB(p, lr=0.01, max_grad_norm=0.1),
        "LAMB, plain": lambda p: of.FusedLAMB(p, lr=0.01, max_grad_norm=0.0, use_nvlamb=True),
        "LAMB, two groups": lambda p: of.FusedLamb(
            [
                {"params": [each for each in p if each.ndim > 1]},
                {"params": [each for each in p if each.ndim == 1], "weight_decay": 0.0},
            ],
            lr=0.01,
            max_grad_norm=0.1,
        ),
        "NovoGrad": lambda p: of.FusedNovoGrad(p, lr=0.01, weight_decay=0.01),
        "NovoGrad, largest": lambda p: of.FusedNovoGrad(p, lr=0.01, norm_type=0, init_zero=True),
    }


def normed_network(smp: Any) -> Network:
    """In float64, with our layer norms; its embedding is its head too."""
    made: Network = network()
    for block in made.blocks:
        fused = smp.nn.FusedLayerNorm(block.norm.normalized_shape)
        fused.load_state_dict(block.norm.state_dict())
        block.norm = fused
    return made.double()


def assert_close(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for key, value in expected.items():
            assert_close(found[key], value, f"{what}[{key!r}]")
    elif isinstance(expected, list):
        assert len(found) == len(expected), what
        for number, value in enumerate(expected):
            assert_close(found[number], value, f"{what}[{number}]")
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, **CLOSE, msg=lambda text: f"{what}: {text}")
    else:
        assert found == expected, what


def assert_parameters(model: Any, plain: nn.Module, what: str) -> None:
    expected = dict(plain.named_parameters())
    for name, parameter in model.local_named_parameters():
        assert_close(parameter.detach(), expected[name].detach(), f"{what}: {name}")


def check(smp: Any, name: str, make: Any, model: Any, plain: nn.Module, train: Any) -> None:
    """Parameters and the gathered state; and that a state is loaded, whole or in parts."""
    optimizer = smp.DistributedOptimizer(make(list(model.parameters())))
    reference = make(list(plain.parameters()))
    for number in range(STEPS):
        optimizer.zero_grad()
        reference.zero_grad()
        train(model, *batch(number))
        plain_step(plain, *batch(number))
        optimizer.step()
        reference.step()
        if number == 1:
            saved = optimizer.state_dict()
            own = copy.deepcopy(optimizer.local_state_dict())
            assert_close(saved["state"], reference.state_dict()["state"], name)
            assert [group["step"] for group in saved["param_groups"]] == [2] * len(
                reference.param_groups
            )
            optimizer = smp.DistributedOptimizer(make(list(model.parameters())))
            optimizer.load_state_dict(saved if "LAMB" in name else own)
    assert_parameters(model, plain, name)
    assert_close(optimizer.state_dict(), reference.state_dict(), name)


def check_the_norm(smp: Any, model: Any, plain: nn.Module, train: Any) -> None:
    """It is that of all ranks; of what is no part of the model it is this rank's."""
    from smdistributed.modelparallel.torch.optimizer.gradient_norms import total_norm

    model.zero_grad()
    plain.zero_grad()
    train(model, *batch(0))
    plain_step(plain, *batch(0))
    expected = torch.stack(
        [each.grad.norm() for each in plain.parameters() if each.grad is not None]
    )
    found = smp.allgather(total_norm(list(model.parameters())), smp.MP_GROUP)
    assert found[0] == found[1]
    assert found[0] > 0.1, "so the optimizers above had something to clip"
    assert abs(found[0] - float(expected.norm())) < 1e-9 * found[0]
    if smp.rank() == 0:  # alone: nobody else takes part
        other = nn.Parameter(torch.zeros(4))
        other.grad = torch.full((4,), 2.0)
        assert total_norm([other]) == 4.0
        smp.optimizers.FusedLAMB([other]).step()
    smp.mp_barrier()


def two_partitions(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2))
    model = smp.DistributedModel(cut(normed_network(smp), 2))
    early = smp.DistributedOptimizer(smp.optimizers.FusedLAMB(model.parameters()))
    plain = normed_network(smp)
    train = step_function()
    train(model, *batch(0))
    assert early.param_groups[0].get("step") is None
    start = model.state_dict()
    here = {type(each) for each in model.local_modules()}
    assert smp.nn.FusedLayerNorm in here
    for name, make in optimizers(smp).items():
        model.load_state_dict(start)
        plain.load_state_dict(start)
        check(smp, name, make, model, plain, train)
    check_the_norm(smp, model, plain, train)
    smp.reset()


def test_two_partitions_are_one_process() -> None:
    run_ranks(two_partitions, 2, deadline_s=DEADLINE_S)
