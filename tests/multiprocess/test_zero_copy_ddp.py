# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch's own parallel classes with and without zero copy: the same bits in every parameter.

Source: docs/zero_copy.md.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import smddp

DEADLINE_S = 120.0
STEPS = 6
BATCH = 4
WIDTH = 192  # a layer has 144 KiB of gradients


class _Model(nn.Module):
    """Three layers of one width; two more of which each step leaves one out, if asked to."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.branches = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2 * branches)])
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if self.branches:
            x = self.branches[self.steps % 2](x)
        self.steps += 1
        return x


def _loss(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x, y = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
    loss: Tensor = nn.functional.mse_loss(model(x), y)
    return loss


def train(
    rank: int, world_size: int, options: dict[str, Any], branches: bool, with_no_sync: bool
) -> tuple[list[Tensor], int, dict[str, int]]:
    from smdistributed.dataparallel.torch import zero_copy_statistics

    with smddp():
        # Several buckets, and the first one small.
        model = DistributedDataParallel(_Model(branches), bucket_cap_mb=0.2, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            if with_no_sync:
                with model.no_sync():
                    _loss(model, 1000 + step).backward()
            _loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        found = zero_copy_statistics()
        return [p.detach().clone() for p in model.parameters()], found.buckets, dict(found.refused)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    ("options", "branches", "with_no_sync"),
    [
        ({}, False, False),
        ({}, False, True),
        ({"gradient_as_bucket_view": True}, False, False),
        ({"gradient_as_bucket_view": True}, False, True),
        ({"static_graph": True}, False, False),
        ({"static_graph": True, "gradient_as_bucket_view": True}, False, False),
        ({"find_unused_parameters": True}, True, False),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, True, False),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, True, True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_the_same_bits_with_and_without(
    world_size: int, options: dict[str, Any], branches: bool, with_no_sync: bool
) -> None:
    arguments = (train, world_size, options, branches, with_no_sync)
    on = run_ranks(*arguments, env={"SMDDP_ZERO_COPY": "1"}, deadline_s=DEADLINE_S)
    off = run_ranks(*arguments, env={"SMDDP_ZERO_COPY": "0"}, deadline_s=DEADLINE_S)
    for rank in range(world_size):
        assert on[rank][1] >= 2, "no bucket was shared, so this showed nothing"
        assert not on[rank][2]
        assert off[rank][1] == 0
        for one, other, first in zip(on[rank][0], off[rank][0], on[0][0], strict=True):
            assert torch.equal(one, other)
            assert torch.equal(one, first)


def reduces_of(rank: int, world_size: int, options: dict[str, Any], hook: bool) -> list[list[str]]:
    """Algorithms of the gradients' reductions, step by step."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    from smdistributed.collectives import _native

    with smddp():
        model = DistributedDataParallel(_Model(branches=False), bucket_cap_mb=0.2, **options)
        if hook:
            model.register_comm_hook(None, allreduce_hook)
        steps = []
        for step in range(3):
            _native.start_trace()
            _loss(model, step).backward()
            events, _ = _native.stop_trace()
            steps.append([e[6] for e in events if e[2] == "all_reduce" and e[5] >= 64 << 10])
        return steps


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}],
    ids=lambda options: "+".join(options),
)
def test_gradients_are_reduced_where_they_lie_from_the_first_step_on(
    options: dict[str, Any], hook: bool
) -> None:
    for steps in run_ranks(reduces_of, 2, options, hook, deadline_s=DEADLINE_S):
        assert all(steps)
        assert {algorithm for step in steps for algorithm in step} == {"shared"}


def has_no_room(rank: int, world_size: int) -> tuple[int, int]:
    """Rank 0 alone: its buckets are ordinary memory, and all ranks stage."""
    from smdistributed.dataparallel.torch import zero_copy_statistics

    with smddp():
        group: Any = dist.distributed_c10d._get_default_group()
        if rank == 0:
            group.shared_memory.allocate = lambda nbytes, **about: None
        model = DistributedDataParallel(_Model(branches=False), bucket_cap_mb=0.2)
        for step in range(3):
            _loss(model, step).backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        for grad in grads:
            other = grad.clone()
            dist.broadcast(other, 0)
            assert torch.equal(grad, other)
        return zero_copy_statistics().buckets, len(grads)


def test_without_room_buckets_are_ordinary_memory() -> None:
    (zero, grads), (some, _) = run_ranks(has_no_room, 2, deadline_s=DEADLINE_S)
    assert grads == 6
    assert zero == 0
    assert some >= 2


def is_interrupted(rank: int, world_size: int) -> tuple[list[bool], int]:
    """Rank 1 handles a signal while its reducer, which makes new buckets, waits for rank 0."""
    import signal
    import traceback

    from smdistributed.dataparallel.torch import zero_copy_statistics

    made: list[Tensor] = []
    with smddp():
        store = dist.distributed_c10d._get_default_store()

        def handle(*about: object) -> None:
            names = [frame.name for frame in traceback.extract_stack()]
            if "_rebuild_buckets" not in names:
                return
            signal.setitimer(signal.ITIMER_REAL, 0)
            # One that came before that has done it: a handler may be interrupted by the next.
            if not made:
                made.append(torch.empty(1 << 20, dtype=torch.float32, device="cpu"))
                store.set("made", b"")

        model = DistributedDataParallel(_Model(branches=False))
        _loss(model, 0).backward()
        if rank == 0:
            store.wait(["made"])
        else:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        _loss(model, 1).backward()
        signal.setitimer(signal.ITIMER_REAL, 0)
        resizable = [tensor.untyped_storage().resizable() for tensor in made]
        return resizable, zero_copy_statistics().buckets


def test_what_a_handler_of_signals_allocates_is_no_bucket() -> None:
    """It once lay in shared memory, could not be resized, and was counted as a bucket."""
    assert run_ranks(is_interrupted, 2, deadline_s=DEADLINE_S) == [([], 2), ([True], 2)]


def is_remade(rank: int, world_size: int) -> tuple[str, int]:
    """What torch does with a reducer besides: pickling, another group, a group of Gloo."""
    import pickle

    from smdistributed.dataparallel.torch import zero_copy_statistics
    from smdistributed.dataparallel.torch.ddp_buckets import SharedBucketReducer

    with smddp():
        model = DistributedDataParallel(_Model(branches=False))
        _loss(model, 0).backward()
        before = zero_copy_statistics().buckets
        copy = pickle.loads(pickle.dumps(model))
        assert zero_copy_statistics().buckets > before
        _loss(copy, 1).backward()
        other = dist.new_group()
        copy._update_process_group(other)
        _loss(copy, 2).backward()
        before = zero_copy_statistics().buckets
        gloo = dist.new_group(backend="gloo")
        ordinary = DistributedDataParallel(_Model(branches=False), process_group=gloo)
        assert isinstance(ordinary.reducer, SharedBucketReducer)
        return type(model.reducer).__name__, zero_copy_statistics().buckets - before


def test_reducers_are_pickled_and_given_other_groups() -> None:
    assert run_ranks(is_remade, 2, deadline_s=DEADLINE_S) == [("SharedBucketReducer", 0)] * 2


def uses_legacy(rank: int, world_size: int) -> tuple[bool, dict[str, int], bool]:
    """It allocates its buckets itself."""
    from smdistributed.collectives import _native
    from smdistributed.dataparallel.torch import zero_copy_statistics
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Legacy

    with smddp():
        model = Legacy(_Model(branches=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        _native.start_trace()
        for step in range(4):
            _loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        events, _ = _native.stop_trace()
        found = zero_copy_statistics()
        reductions = [e for e in events if e[2] == "all_reduce" and e[5] >= 64 << 10]
        return (
            found.allocated > 0,
            dict(found.refused),
            bool(reductions) and all(e[6] == "shared" for e in reductions),
        )


def test_the_legacy_wrapper_has_its_buckets_in_shared_memory() -> None:
    assert run_ranks(uses_legacy, 2, deadline_s=DEADLINE_S) == [(True, {}, True)] * 2


# --- FSDP2 ---------------------------------------------------------------------------------------


def train_sharded(
    rank: int, world_size: int, from_group: bool
) -> tuple[list[Tensor], int, list[bool]]:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp

    allocations: list[bool] = []
    places = set()
    allocate = ProcessGroupSmddp.allocate_tensor

    def counted(self: ProcessGroupSmddp, size: int, **about: Any) -> Tensor:
        tensor = allocate(self, size, **about)
        # Memory that came from the engine has an owner that torch may not move.
        allocations.append(not tensor.untyped_storage().resizable())
        places.add(tensor.data_ptr())
        return tensor

    ProcessGroupSmddp.allocate_tensor = counted  # type: ignore[method-assign]
    with smddp():
        mesh = dist.init_device_mesh("cpu", (world_size,))
        model = _Model(branches=False)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(from_group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            _loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        weights = [p.full_tensor().detach().clone() for p in model.parameters()]
        return weights, len(places), allocations


@pytest.mark.parametrize("world_size", [2, 3])
def test_fsdp2_allocates_its_buffers_from_the_group(world_size: int) -> None:
    with_group = run_ranks(train_sharded, world_size, True, deadline_s=DEADLINE_S)
    without = run_ranks(train_sharded, world_size, False, deadline_s=DEADLINE_S)
    for rank in range(world_size):
        weights, places, allocations = with_group[rank]
        assert len(allocations) >= 2 * STEPS
        assert all(allocations)
        assert places < len(allocations) / STEPS, "the memory is not used again"
        for one, other in zip(weights, without[rank][0], strict=True):
            assert torch.equal(one, other)
        assert not without[rank][2]
