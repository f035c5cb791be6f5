# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy DistributedDataParallel trains as torch's does over `smddp`, whatever the loop does.

Each case trains one model twice, with the same data: once wrapped by torch's class, once by the
legacy one. Weights must agree within 1e-6 per element: torch divides gradients by the world size
before they are added up, we afterwards, so single roundings differ. Where 16-bit gradients are
involved the difference of the two orders is one unit in the last place of those, 2^-8 relative for
bfloat16 and 2^-11 for float16. Between ranks no difference is allowed.

The files beside this, `test_legacy_ddp_*.py`, have a topic each: steps of several backwards,
`join`, communication hooks, the wrapper as an object, errors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_models import (
    WIDTH,
    Branches,
    Checkpointed,
    DictOutput,
    Embedded,
    Images,
    Mixed,
    OpaqueOutput,
    Plain,
    Unused,
)
from ddp_training import (
    BATCH,
    SMALL,
    Loop,
    assert_close,
    assert_same_bits,
    each_step,
    loss_of,
    made,
    train,
    without_sync,
)
from harness import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch_ranks import smddp


def zero_in_place(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def never_zeroed(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()


def accumulates_three(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """For torch `no_sync`; the legacy class is told once, and decides by itself."""
    for part in range(3):
        own = model.no_sync() if type(model) is TorchDDP and part < 2 else contextlib.nullcontext()
        with own:
            loss_of(model, 10 * step + part).backward()
    optimizer.step()
    optimizer.zero_grad()


def two_backwards(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, 10 * step).backward()
    loss_of(model, 10 * step + 1).backward()
    optimizer.step()
    optimizer.zero_grad()


def clipped(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()


def validates(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Forwards without a backward between the steps, also where gradients are recorded."""
    model.eval()
    with torch.no_grad():
        loss_of(model, 77)
    loss_of(model, 78)
    model.train()
    each_step(model, optimizer, step)


def saliency_on_rank_0(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A backward through the wrapped module, on one rank alone, must not communicate."""
    if dist.get_rank() == 0 and step:
        x = torch.randn(BATCH, WIDTH, requires_grad=True)
        model.module.eval()
        model.module(x).sum().backward()
        model.module.train()
        assert x.grad is not None
        optimizer.zero_grad()
    each_step(model, optimizer, step)


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Loop, float]] = {
    "plain": (Plain, {}, each_step, 1e-6),
    "several buckets": (Plain, {"bucket_cap_mb": SMALL}, each_step, 1e-6),
    "no buffers": (Plain, {"broadcast_buffers": False}, each_step, 1e-6),
    "zeroed in place": (Plain, {"bucket_cap_mb": SMALL}, zero_in_place, 1e-6),
    "never zeroed": (Plain, {"bucket_cap_mb": SMALL}, never_zeroed, 1e-5),
    "no_sync": (Plain, {"bucket_cap_mb": SMALL}, without_sync, 1e-6),
    "two backwards": (Plain, {}, two_backwards, 1e-6),
    "clipped": (Plain, {}, clipped, 1e-6),
    "validation between": (Plain, {"bucket_cap_mb": SMALL}, validates, 1e-6),
    "saliency": (Plain, {"bucket_cap_mb": SMALL}, saliency_on_rank_0, 1e-6),
    "channels_last": (Images, {}, each_step, 1e-6),
    "dict output": (DictOutput, {"find_unused_parameters": True}, each_step, 1e-6),
    "opaque output": (OpaqueOutput, {}, each_step, 1e-6),
    "float64": (
        functools.partial(Mixed, torch.float64, torch.float32, torch.float64),
        {"bucket_cap_mb": SMALL},
        each_step,
        1e-6,
    ),
    "bfloat16": (functools.partial(Mixed, torch.bfloat16, torch.float32), {}, each_step, 8e-3),
    "float16": (functools.partial(Mixed, torch.float16), {}, each_step, 1e-3),
    "unused": (Unused, {"find_unused_parameters": True}, each_step, 1e-6),
    "branches": (Branches, {"find_unused_parameters": True}, each_step, 1e-6),
    "branches, several buckets": (
        Branches,
        {"find_unused_parameters": True, "bucket_cap_mb": 1 / 4096},
        zero_in_place,
        1e-6,
    ),
    "branches, no_sync": (Branches, {"find_unused_parameters": True}, without_sync, 1e-6),
    "static graph": (Unused, {"static_graph": True}, each_step, 1e-6),
    "static graph, no_sync": (Plain, {"static_graph": True}, without_sync, 1e-6),
    "checkpoint": (functools.partial(Checkpointed, False), {}, each_step, 1e-6),
    "re-entrant checkpoint": (
        functools.partial(Checkpointed, True),
        {"bucket_cap_mb": 1 / 4096},
        each_step,
        1e-6,
    ),
    "re-entrant checkpoint, unused": (
        functools.partial(Checkpointed, True),
        {"static_graph": True},
        each_step,
        1e-6,
    ),
}

# Where torch 2.13 cannot do what we can: its static graph may not begin within no_sync().
TORCH_OPTIONS: dict[str, dict[str, Any]] = {"static graph, no_sync": {}}


def trains_as_torch(rank: int, world_size: int, names: list[str]) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        for name in names:
            make, options, loop, tolerance = CASES[name]
            known = TORCH_OPTIONS.get(name, options)
            torchs = train(lambda m: TorchDDP(m, **known), made(make), loop)  # noqa: B023
            ours = train(lambda m: DistributedDataParallel(m, **options), made(make), loop)  # noqa: B023
            try:
                assert_same_bits(ours)
                assert_close(ours, torchs, tolerance)
            except AssertionError as error:
                raise AssertionError(f"case '{name}': {error}") from error


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_trains_as_torch_does(world_size: int) -> None:
    run_ranks(trains_as_torch, world_size, list(CASES), deadline_s=110)


def test_trains_as_torch_does_on_eight_ranks() -> None:
    names = ["several buckets", "no_sync", "branches", "bfloat16"]
    run_ranks(trains_as_torch, 8, names, deadline_s=110)


def other_loops(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        torchs = train(TorchDDP, made(Plain), accumulates_three)
        ours = train(
            lambda m: DistributedDataParallel(m, gradient_accumulation_steps=3),
            made(Plain),
            accumulates_three,
        )
        assert_same_bits(ours)
        assert_close(ours, torchs, 1e-6)

        torchs = train(TorchDDP, made(functools.partial(Embedded, False)), each_step)
        ours = train(DistributedDataParallel, made(functools.partial(Embedded, True)), each_step)
        assert_close(ours, torchs, 1e-6)
        ours = train(DistributedDataParallel, made(functools.partial(Embedded, True)), without_sync)
        torchs = train(TorchDDP, made(functools.partial(Embedded, False)), without_sync)
        assert_close(ours, torchs, 1e-6)


def test_accumulation_steps_and_sparse_gradients() -> None:
    run_ranks(other_loops, 2, deadline_s=90)
