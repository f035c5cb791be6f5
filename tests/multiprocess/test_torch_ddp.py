# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel over `smddp`: equal to one process, and equal on all ranks.

Tolerance: gradients are sums of the same products in another order (per-rank means, then the mean
of those), so float32 results differ by a few units in the last place of each step. 1e-6 relative
per step is the bound (dataparallel specification, section 12, point 2); weights of this size stay
within 1e-6 absolute over the steps run here. Between ranks there is no tolerance: bits must agree.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import smddp

STEPS = 6
BATCH = 4  # per rank
WIDTH = 24


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    )


class _Branches(nn.Module):
    """Uses one of two branches, by the step: the other's parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.common = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList([nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)])
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        result: Tensor = self.branches[self.step % 2](torch.tanh(self.common(x)))
        return result


def _batch(step: int, world_size: int) -> tuple[Tensor, Tensor]:
    """The joined batch of all ranks."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(world_size * BATCH, WIDTH, generator=generator)
    y = torch.randn(world_size * BATCH, 3, generator=generator)
    return x, y


def _train_alone(model: nn.Module, world_size: int, sync_every: int = 1) -> tuple[list[float], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = _batch(step, world_size)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        if (step + 1) % sync_every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def _train_ddp(
    ddp: DistributedDataParallel, rank: int, world_size: int, sync_every: int = 1
) -> tuple[list[float], dict[str, Tensor]]:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = (t[rank * BATCH : (rank + 1) * BATCH] for t in _batch(step, world_size))
        if (step + 1) % sync_every:
            with ddp.no_sync():
                loss = nn.functional.mse_loss(ddp(x), y)
                loss.backward()
        else:
            loss = nn.functional.mse_loss(ddp(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses, {n: p.detach() for n, p in ddp.module.named_parameters()}


def _assert_equal_to_alone(
    losses: list[float], weights: dict[str, Tensor], alone: tuple[list[float], Any]
) -> None:
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone[0]), rtol=1e-6, atol=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, alone[1][name], rtol=1e-6, atol=1e-6)


def _assert_same_bits_on_all_ranks(weights: dict[str, Tensor], world_size: int) -> None:
    for name, weight in weights.items():
        theirs = [torch.empty_like(weight) for _ in range(world_size)]
        dist.all_gather(theirs, weight)
        assert all(torch.equal(other, weight) for other in theirs), name


def equal_to_one_process(
    rank: int, world_size: int, options: dict[str, Any], sync_every: int, branches: bool
) -> None:
    make = _Branches if branches else _model
    with smddp():
        ddp = DistributedDataParallel(make(), **options)
        losses, weights = _train_ddp(ddp, rank, world_size, sync_every)
        _assert_same_bits_on_all_ranks(weights, world_size)
        _assert_equal_to_alone(losses, weights, _train_alone(make(), world_size, sync_every))


@pytest.mark.parametrize(
    ("options", "sync_every", "branches"),
    [
        ({}, 1, False),
        ({}, 3, False),
        ({"gradient_as_bucket_view": True}, 1, False),
        ({"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, 2, False),
        ({"static_graph": True}, 1, False),
        ({"find_unused_parameters": True}, 1, True),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, 1, True),
        ({"broadcast_buffers": False, "init_sync": False}, 1, False),
    ],
)
def test_equal_to_one_process(options: dict[str, Any], sync_every: int, branches: bool) -> None:
    run_ranks(equal_to_one_process, 2, options, sync_every, branches)


def test_equal_to_one_process_on_three_ranks() -> None:
    run_ranks(equal_to_one_process, 3, {"gradient_as_bucket_view": True}, 1, False)


def _hooks() -> dict[str, tuple[Any, Callable[..., Any], float]]:
    """Name -> (state, hook, tolerance of the weights against no hook at all)."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def own_allreduce(group, bucket):  # type: ignore[no-untyped-def]
        # No annotations: torch compares them with its classes, and here they would be strings.
        tensor = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    half = 2e-3  # 11 bits of mantissa in each gradient, a few steps of learning rate 0.05
    power = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=64, start_powerSGD_iter=2, warm_start=False
    )
    return {
        "own": (None, own_allreduce, 1e-6),
        "allreduce": (None, default_hooks.allreduce_hook, 1e-6),
        "fp16": (None, default_hooks.fp16_compress_hook, half),
        "wrapped": (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), half),
        "powerSGD": (power, powerSGD_hook.powerSGD_hook, 1e-1),
    }


def comm_hook(rank: int, world_size: int, name: str) -> None:
    with smddp():
        state, hook, tolerance = _hooks()[name]
        ddp = DistributedDataParallel(_model())
        ddp.register_comm_hook(state, hook)
        losses, weights = _train_ddp(ddp, rank, world_size)
        _assert_same_bits_on_all_ranks(weights, world_size)
        _, alone = _train_alone(_model(), world_size)
        for parameter, weight in weights.items():
            torch.testing.assert_close(weight, alone[parameter], rtol=0, atol=tolerance)
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["own", "allreduce", "fp16", "wrapped", "powerSGD"])
def test_comm_hooks(name: str) -> None:
    run_ranks(comm_hook, 2, name)


def late_peer(rank: int, world_size: int) -> None:
    """The other rank comes long after this one has stopped spinning."""
    with smddp():
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Linear(5, 2))
        threads = []

        def hook(state, bucket):  # type: ignore[no-untyped-def]
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            assert work is not None

            def halve(future):  # type: ignore[no-untyped-def]
                threads.append(threading.current_thread())
                return future.value()[0] / world_size

            return work.get_future().then(halve)

        ddp.register_comm_hook(None, hook)
        for step in range(4):
            ddp.zero_grad()
            loss = ddp(torch.full((1, 5), float(rank + 1))).sum()
            if step % world_size == rank:
                time.sleep(0.2)
            loss.backward()
            torch.testing.assert_close(ddp.module.weight.grad, torch.full((2, 5), 1.5))
        # No other thread had to be woken for the callbacks.
        assert set(threads) == {threading.current_thread()}
        assert len(threads) == 4

        # The wait of the callback raises what the operation did, in backward().
        loss = ddp(torch.ones(1, 5)).sum()
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.set("summed", b"")
            with pytest.raises(RuntimeError, match="no more steps"):
                loss.backward()
        else:
            store.wait(["summed"])  # the abort could overtake the last sum
            time.sleep(0.2)  # most often it waits by then; it is told in any case
            dist.group.WORLD.abort("no more steps")  # type: ignore[union-attr]


def test_futures_asked_for_in_backward_complete_on_its_thread() -> None:
    run_ranks(late_peer, 2)


def builtin_hook(rank: int, world_size: int) -> None:
    """The hooks written in C++ call the group through torch's trampoline only."""
    with smddp():
        ddp = DistributedDataParallel(_model())
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        losses, weights = _train_ddp(ddp, rank, world_size)
        _assert_same_bits_on_all_ranks(weights, world_size)
        _assert_equal_to_alone(losses, weights, _train_alone(_model(), world_size))


def test_builtin_comm_hook() -> None:
    run_ranks(builtin_hook, 2)


def uneven_inputs(rank: int, world_size: int) -> Any:
    with smddp():
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Linear(3, 1, bias=False))
        nn.init.zeros_(ddp.module.weight)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
        steps = 0
        with ddp.join(divide_by_initial_world_size=True):
            for _ in range(3 + 2 * rank):  # the classic cause of a stall
                optimizer.zero_grad()
                ddp(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                steps += 1
        # A step of r active ranks moves each weight by r / world_size.
        active = [sum(3 + 2 * r > step for r in range(world_size)) for step in range(3 + 2 * rank)]
        expected = -sum(count / world_size for count in active)
        final = ddp.module.weight.detach().clone()
        return steps, expected, final.tolist()


def test_join_with_uneven_inputs() -> None:
    outcomes = run_ranks(uneven_inputs, 3)
    assert [steps for steps, _, _ in outcomes] == [3, 5, 7]
    last = outcomes[-1]
    torch.testing.assert_close(torch.tensor(last[2]), torch.full((1, 3), last[1]))
    assert all(final == last[2] for _, _, final in outcomes), "join ends with the last rank's model"


def parameters_differ(rank: int, world_size: int) -> str:
    from torch_ranks import raised

    with smddp(timeout_s=10):
        _, text, _ = raised(DistributedDataParallel, nn.Linear(3, 3 + rank))
        return text


def test_models_that_differ_are_refused_at_construction() -> None:
    texts = run_ranks(parameters_differ, 2)
    assert any("appears not to match" in text for text in texts), texts


def mixed_dtypes(rank: int, world_size: int) -> None:
    with smddp():
        torch.manual_seed(3)
        model = nn.ModuleDict({"single": nn.Linear(4, 4), "twice": nn.Linear(4, 4).double()})

        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = copy.deepcopy(model)

            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = self.parts["twice"](self.parts["single"](x).double())
                return result

        ddp = DistributedDataParallel(Both())
        x = torch.arange(8.0).view(2, 4) + rank
        ddp(x).sum().backward()
        alone = Both()
        (alone(torch.arange(8.0).view(2, 4)).sum() / 2).backward()
        (alone(torch.arange(8.0).view(2, 4) + 1).sum() / 2).backward()
        for ours, theirs in zip(ddp.module.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_of_two_dtypes() -> None:
    """A correctness bug of the original before 1.2.2 (dataparallel specification, section 2)."""
    run_ranks(mixed_dtypes, 2)


def loader_workers(rank: int, world_size: int) -> None:
    """DataLoader workers fork after initialisation; they must neither hang nor disturb."""
    from torch.utils.data import DataLoader, TensorDataset

    with smddp():
        ddp = DistributedDataParallel(_model())
        x, y = _batch(0, world_size)
        loader = DataLoader(TensorDataset(x, y), batch_size=2, num_workers=2)
        for inputs, targets in loader:
            nn.functional.mse_loss(ddp(inputs), targets).backward()
        _assert_same_bits_on_all_ranks(
            {n: p.grad for n, p in ddp.named_parameters() if p.grad is not None}, world_size
        )


def test_data_loader_workers_fork_after_init() -> None:
    run_ranks(loader_workers, 2)
