# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy DistributedDataParallel where a step is not one forward and one backward."""

from __future__ import annotations

import copy
import functools

import torch
import torch.distributed as dist
from ddp_models import WIDTH, TwoHeads
from ddp_training import loss_of, made
from harness import run_ranks
from torch import Tensor, nn
from torch_ranks import smddp


def several_backwards_of_forwards(rank: int, world_size: int) -> None:
    """Gradients are the mean over ranks of all backwards, in every order of them."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    def grads(model: nn.Module) -> list[Tensor]:
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def expected(plain: nn.Module, steps: list[int]) -> list[Tensor]:
        plain.zero_grad()
        for step in steps:
            loss_of(plain, step).backward()
        means = grads(plain)
        for mean in means:
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        return means

    with smddp():
        for unused in (False, True):
            model = made(functools.partial(nn.Linear, WIDTH, 2))
            ddp = DistributedDataParallel(
                model, bucket_cap_mb=1 / 8192, find_unused_parameters=unused
            )
            plain = copy.deepcopy(model)

            first, second = loss_of(ddp, 1), loss_of(ddp, 2)
            first.backward()
            second.backward()
            torch.testing.assert_close(grads(model), expected(plain, [1, 2]))

            ddp.zero_grad()
            loss = loss_of(ddp, 3)
            loss.backward(retain_graph=True)
            loss.backward()
            torch.testing.assert_close(grads(model), expected(plain, [3, 3]))

            ddp.zero_grad()
            (loss_of(ddp, 4) + loss_of(ddp, 5)).backward()
            torch.testing.assert_close(grads(model), expected(plain, [4, 5]))

            ddp.zero_grad()
            with ddp.no_sync():
                held = loss_of(ddp, 6)
            now = loss_of(ddp, 7)
            held.backward()
            now.backward()
            torch.testing.assert_close(grads(model), expected(plain, [6, 7]))


def test_several_backwards_are_all_reduced() -> None:
    run_ranks(several_backwards_of_forwards, 2)


def gradient_penalty(rank: int, world_size: int) -> None:
    """`autograd.grad` reduces nothing, also on one rank alone; the backward after it does."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        for options in ({"find_unused_parameters": True}, {"static_graph": True}):
            model = nn.Linear(1, 1, bias=False)
            ddp = DistributedDataParallel(model, **options)
            for _ in range(3):
                x = torch.ones(1, 1, requires_grad=True)
                if rank == 0:
                    torch.autograd.grad(ddp(x).sum(), x)
                    torch.autograd.grad(ddp(x).sum(), list(ddp.parameters()))
                (g,) = torch.autograd.grad(ddp(x).sum() * (2 * rank + 1), x, create_graph=True)
                g.sum().backward()
                assert model.weight.grad.tolist() == [[2.0]]
                ddp.zero_grad()

                out = ddp(torch.ones(1, 1)).sum() * (2 * rank + 1)
                for total in (2.0, 4.0):  # a backward with `inputs` is one
                    out.backward(inputs=list(ddp.parameters()), retain_graph=True)
                    assert model.weight.grad.tolist() == [[total]]
                ddp.zero_grad()


def test_autograd_grad_is_no_step_and_a_gradient_penalty_is_reduced() -> None:
    run_ranks(gradient_penalty, 2)


def two_wrappers(rank: int, world_size: int) -> None:
    """Both stay alive and train in turns; gradients of one are not moved by the other."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        model = made(functools.partial(nn.Linear, WIDTH, 2))
        wrappers = [DistributedDataParallel(model, bucket_cap_mb=1 / 8192) for _ in range(2)]
        plain = copy.deepcopy(model)
        for step in range(4):
            ddp = wrappers[step % 2]
            loss_of(ddp, step).backward()
            assert {id(p.grad) for p in model.parameters()} == {
                id(slot.view) for slot in ddp.reducer._slots
            }
            loss_of(plain, step).backward()
            for ours, local in zip(model.parameters(), plain.parameters(), strict=True):
                dist.all_reduce(local.grad, op=dist.ReduceOp.AVG)
                torch.testing.assert_close(ours.grad, local.grad)
            model.zero_grad()
            plain.zero_grad()


def test_two_wrappers_of_one_model_take_turns() -> None:
    run_ranks(two_wrappers, 2)


def step_spread_over_backwards(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(TwoHeads))
        for _ in range(2):
            one, two = ddp(torch.full((1, WIDTH), float(rank)))
            one.sum().backward()
            two.sum().backward()
            for head in (ddp.module.one, ddp.module.two):
                assert head.weight.grad.tolist() == [[0.5] * WIDTH] * 2
            ddp.zero_grad()


def test_two_losses_of_two_heads_complete_one_step() -> None:
    run_ranks(step_spread_over_backwards, 2)
