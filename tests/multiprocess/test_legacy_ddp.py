# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy DistributedDataParallel trains as torch's does over `smddp`, whatever the loop does.

Each case trains one model twice, with the same data: once wrapped by torch's class, once by the
legacy one. Weights must agree within 1e-6 per element: torch divides gradients by the world size
before they are added up, we afterwards, so single roundings differ. Where 16-bit gradients are
involved the difference of the two orders is one unit in the last place of those, 2^-8 relative for
bfloat16 and 2^-11 for float16. Between ranks no difference is allowed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import RankOutcome, run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint
from torch_ranks import raised, smddp

STEPS = 4
BATCH = 3
WIDTH = 12
SMALL = 1 / 1024  # MiB; several buckets even for these models

Loop = Callable[[Any, torch.optim.Optimizer, int], None]


# ---- models ----------------------------------------------------------------------------------


class Plain(nn.Module):
    """Also holds a shared parameter, a frozen one, a scalar, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 40)
        self.norm = nn.BatchNorm1d(40)
        self.tied = nn.Linear(40, 40)
        self.again = nn.Linear(40, 40)
        self.again.weight = self.tied.weight
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.ones(40), requires_grad=False)
        self.last = nn.Linear(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        h = torch.tanh(self.again(torch.tanh(self.tied(h)))) * self.scale + self.frozen
        result: Tensor = self.last(h)
        return result


class Images(nn.Module):
    """Convolutions in channels_last, so that gradients are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.last = nn.Linear(8 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 3, 2, 2).repeat(1, 1, 2, 2).to(memory_format=torch.channels_last)
        result: Tensor = self.last(torch.tanh(self.convolution(image)).flatten(1))
        return result


class Mixed(nn.Module):
    """Parameters of four dtypes in turns."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in dtypes)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = torch.tanh(layer(x.to(layer.weight.dtype))).to(torch.float32)
        result: Tensor = self.last(x)
        return result


class Branches(nn.Module):
    """Which of its branches it uses depends on rank and step; the last one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        branch = self.branches[(dist.get_rank() + self.calls) % 3]
        result: Tensor = branch(torch.tanh(self.common(x)))
        return result


class Unused(nn.Module):
    """One parameter that no step uses, the same on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(WIDTH, 2)
        self.spare = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.used(x)
        return result


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = checkpoint(self.middle, h, use_reentrant=self.reentrant)
        result: Tensor = self.last(h)
        return result


class Embedded(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH, sparse=sparse)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.table((x.abs() * 10).long().clamp(max=49)).mean(1))
        return result


class DictOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        return {"out": super().forward(x), "extras": [x.sum(), "text"]}


class Opaque:
    """An output in which nobody can find tensors."""

    def __init__(self, out: Tensor) -> None:
        self.out = out


class OpaqueOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        return Opaque(super().forward(x))


# ---- training loops --------------------------------------------------------------------------


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, torch.randn(BATCH, 2, generator=generator)


def loss_of(model: Any, step: int) -> Tensor:
    x, y = batch(step)
    out = model(x)
    if isinstance(out, dict):
        out = out["out"]
    if isinstance(out, Opaque):
        out = out.out
    return nn.functional.mse_loss(out, y)


def each_step(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()


def zero_in_place(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def never_zeroed(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()


def without_sync(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    with model.no_sync():
        for part in range(2):
            loss_of(model, 10 * step + part).backward()
    loss_of(model, 10 * step + 2).backward()
    optimizer.step()
    optimizer.zero_grad()


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


def train(wrap: Callable[[nn.Module], Any], model: nn.Module, loop: Loop) -> dict[str, Tensor]:
    ddp = wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.005, momentum=0.9, weight_decay=0.01)
    for step in range(STEPS):
        loop(ddp, optimizer, step)
    return {name: value.detach().clone() for name, value in ddp.module.state_dict().items()}


def assert_same_bits(weights: dict[str, Tensor]) -> None:
    """Of parameters; buffers are broadcast before a forward, so after one they differ."""
    for name, weight in weights.items():
        if name.startswith("norm.running") or "num_batches" in name:
            continue
        theirs = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, weight.contiguous())
        assert all(torch.equal(other, theirs[0]) for other in theirs), name


def assert_close(ours: dict[str, Tensor], torchs: dict[str, Tensor], tolerance: float) -> None:
    for name, weight in ours.items():
        torch.testing.assert_close(
            weight, torchs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3 + dist.get_rank())  # differs, so that the broadcast is tested too
    return make()


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


# ---- what torch's class has in another form, or not at all -----------------------------------


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


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, 2)
        self.two = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


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


# ---- uneven batches --------------------------------------------------------------------------


def uneven(
    rank: int, world_size: int, options: dict[str, Any], join: dict[str, Any], parts: int
) -> None:
    """Rank r has r + 2 batches; weights and buffers come out as with torch's class."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    def train_uneven(ddp: Any) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.005)
        with ddp.join(**join):
            for step in range(rank + 2):
                for part in range(parts):
                    last = part == parts - 1
                    with contextlib.nullcontext() if last else ddp.no_sync():
                        loss_of(ddp, 10 * step + part).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {name: value.clone() for name, value in ddp.module.state_dict().items()}

    make = Unused if "find_unused_parameters" in options else Plain
    with smddp():
        torchs = train_uneven(TorchDDP(made(make), **options))
        ours = train_uneven(DistributedDataParallel(made(make), **options))
        assert_same_bits(ours)
        assert_close(ours, torchs, 1e-6)


@pytest.mark.parametrize(
    ("options", "join", "parts", "world_size"),
    [
        ({"bucket_cap_mb": SMALL}, {}, 1, 2),
        ({"bucket_cap_mb": SMALL}, {"divide_by_initial_world_size": False}, 1, 3),
        ({"find_unused_parameters": True}, {}, 1, 2),
        ({"broadcast_buffers": False}, {}, 2, 2),
        ({}, {"divide_by_initial_world_size": False}, 2, 2),
    ],
)
def test_uneven_batches(
    options: dict[str, Any], join: dict[str, Any], parts: int, world_size: int
) -> None:
    run_ranks(uneven, world_size, options, join, parts)


# ---- communication hooks ---------------------------------------------------------------------


def hooked(rank: int, world_size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    def wrap(state: Any, hook: Any, cap: float | None = SMALL) -> Callable[[nn.Module], Any]:
        def wrapped(model: nn.Module) -> Any:
            ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
            ddp.register_comm_hook(state, hook)
            return ddp

        return wrapped

    with smddp():
        plain = train(DistributedDataParallel, made(Plain), each_step)
        for hook, tolerance in (
            (default_hooks.allreduce_hook, 1e-6),
            (default_hooks.fp16_compress_hook, 1e-3),
            (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-3),
        ):
            ours = train(wrap(None, hook), made(Plain), each_step)
            assert_same_bits(ours)
            assert_close(ours, plain, tolerance)
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        # One bucket: the hook starts further collectives as those of each bucket complete.
        ours = train(
            wrap(state, powerSGD_hook.powerSGD_hook, None),
            made(functools.partial(Checkpointed, False)),
            each_step,
        )
        assert_same_bits(ours)
        ddp = wrap(None, default_hooks.allreduce_hook)(made(Plain))
        name, text, _ = raised(ddp.register_comm_hook, None, default_hooks.allreduce_hook)
        assert name == "SMDDPUnsupported"
        assert "one hook" in text


@pytest.mark.parametrize("world_size", [1, 2])
def test_communication_hooks(world_size: int) -> None:
    run_ranks(hooked, world_size)


# ---- copies, moves, memory -------------------------------------------------------------------


def copied_and_moved(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(Plain), static_graph=True)
        loss_of(ddp, 0).backward()
        if rank == 0:  # copies are made without communication, for example of one rank's average
            copy.deepcopy(ddp)
        clone = copy.deepcopy(ddp)
        assert clone.static_graph
        for wrapped in (ddp, clone):
            wrapped.zero_grad()
            loss_of(wrapped, 1).backward()
        for ours, theirs in zip(ddp.parameters(), clone.parameters(), strict=True):
            if ours.requires_grad:
                assert ours.grad is not None
                assert theirs.grad is not None
                assert torch.equal(ours.grad, theirs.grad)

        file = io.BytesIO()
        torch.save(ddp, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert loaded.state_dict().keys() == ddp.state_dict().keys()
        assert all(name.startswith("module.") for name in ddp.state_dict())
        loss_of(loaded, 1).backward()

        ddp.to(torch.float64)  # changes dtype after wrapping: buckets follow
        ddp(torch.ones(2, WIDTH, dtype=torch.float64) * rank).sum().backward()
        (weight,) = ddp.module.last.weight.grad[:1]
        assert weight.dtype == torch.float64
        assert_same_bits({"grad": ddp.module.last.weight.grad})

        ddp.module.to(torch.float32)  # which the wrapper is not told of
        for step in range(2):
            loss_of(ddp, step).backward()
            assert ddp.module.last.weight.grad.dtype == torch.float32
            assert_same_bits({"grad": ddp.module.last.weight.grad})


def test_copies_pickles_and_casts() -> None:
    run_ranks(copied_and_moved, 2)


def gradients_stay_in_place(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(Plain), bucket_cap_mb=SMALL)
        addresses = []
        for step in range(3):
            loss_of(ddp, step).backward()
            grads = [p.grad for p in ddp.parameters() if p.grad is not None]
            addresses.append([g.data_ptr() for g in grads])
            for bucket in ddp.reducer._buckets:
                start, size = bucket.buffer.data_ptr(), bucket.plan.capacity_bytes
                inside = [g for g in grads if start <= g.data_ptr() < start + size]
                held = sum(float(g.double().abs().sum()) for g in inside)
                total = float(bucket.buffer.double().abs().sum())
                assert total == pytest.approx(held, rel=1e-12)  # nothing between the gradients
            ddp.zero_grad(set_to_none=step != 1)
        assert addresses[0] == addresses[1] == addresses[2]


def test_gradients_keep_their_address_and_padding_stays_zero() -> None:
    run_ranks(gradients_stay_in_place, 2)


def second_wrapper(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        model = made(Plain)
        for _ in range(2):
            ddp = DistributedDataParallel(model)
            loss_of(ddp, 0).backward()
            assert len(model.last.weight._post_accumulate_grad_hooks) == 1
            del ddp
        assert not model.last.weight._post_accumulate_grad_hooks
        loss_of(model, 0).backward()


def test_a_wrapper_that_goes_takes_its_hooks_along() -> None:
    run_ranks(second_wrapper, 2)


def alone(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        ddp = DistributedDataParallel(made(Plain))
        assert ddp.reducer is None
        assert not ddp.module.last.weight._post_accumulate_grad_hooks
        loss_of(ddp, 0).backward()
        with ddp.join():
            loss_of(ddp, 1).backward()


def test_one_rank_has_nothing_to_do() -> None:
    run_ranks(alone, 1)


def compiled(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    with smddp():
        model = made(Plain)
        outside = torch.compile(DistributedDataParallel(model), backend="aot_eager")
        for step in range(2):
            loss_of(outside, step).backward()
            assert model.last.weight.grad is not None
            assert_same_bits({"grad": model.last.weight.grad})
            outside.zero_grad()


def test_torch_compile_leaves_the_reduction_alone() -> None:
    run_ranks(compiled, 2, deadline_s=110)


def traced(rank: int, world_size: int) -> list[tuple[str, str]]:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
    from smdistributed.dataparallel.trace import recorder

    with smddp():
        ddp = DistributedDataParallel(TwoHeads(), bucket_cap_mb=1 / 8192)
        recorder.start()
        for head in ddp(torch.ones(1, WIDTH)):
            head.sum().backward()
        events, _ = recorder.stop()
    return [(event.track, event.name) for event in events]


def test_a_recording_shows_filling_and_waiting() -> None:
    fills = [("fill", f"bucket {index}") for index in range(2)]
    for events in run_ranks(traced, 2):
        assert [e for e in events if e[0] == "fill"] == fills
        assert events[-1] == ("wait", "wait")


def timeouts(rank: int, world_size: int) -> list[float]:
    from datetime import timedelta

    os.environ["SMDDP_TIMEOUT_SECONDS"] = "60"
    import smdistributed.dataparallel.torch.distributed as legacy

    found = []
    for options in ({"timeout": timedelta(minutes=30)}, {}):
        legacy.init_process_group(**options)
        found.append(dist.distributed_c10d._get_default_group()._timeout.total_seconds())
        legacy.destroy_process_group()
    return found


def test_a_timeout_that_is_named_goes_before_the_variable_even_if_it_is_torchs_default() -> None:
    assert run_ranks(timeouts, 1) == [[1800.0, 60.0]]


# ---- errors ----------------------------------------------------------------------------------


def dies_in_backward(rank: int, world_size: int) -> tuple[str, str]:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Fatal(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGKILL)
            return grad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.last = nn.Linear(WIDTH, 2)
            self.is_fatal = False

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            result: Tensor = self.last(Fatal.apply(h) if self.is_fatal else h)
            return result

    with _ended_by_error():
        ddp = DistributedDataParallel(Model(), bucket_cap_mb=1 / 8192)
        loss_of(ddp, 0).backward()
        ddp.module.is_fatal = rank == 1
        name, text, _ = raised(loss_of(ddp, 1).backward)
        later, _, _ = raised(lambda: loss_of(ddp, 2).backward())
        assert later == name
    return name, text


@contextlib.contextmanager
def _ended_by_error() -> Iterator[None]:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    dist.init_process_group("smddp")
    yield
    dist.destroy_process_group()


def test_a_rank_that_dies_during_backward_ends_it_everywhere() -> None:
    outcomes: list[RankOutcome] = run_ranks(dies_in_backward, 3, check=False, deadline_s=60)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank]
        name, text = outcomes[rank].value
        assert name == "SMDDPPeerLost"
        assert "rank 1" in text


def unused_on_one_rank(rank: int, world_size: int, does_evaluate: bool) -> tuple[str, str]:
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always = nn.Linear(WIDTH, WIDTH)
            self.sometimes = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.always(x)
            return h if rank == 1 else self.sometimes(h)

    with _ended_by_error():
        ddp = DistributedDataParallel(Model(), bucket_cap_mb=1 / 8192)

        def two_steps() -> None:
            ddp(torch.ones(1, WIDTH)).sum().backward()
            with torch.set_grad_enabled(not does_evaluate):
                ddp(torch.ones(1, WIDTH)).sum()

        name, text, _ = raised(two_steps)
    return name, text


@pytest.mark.parametrize("does_evaluate", [False, True])
def test_a_parameter_unused_on_one_rank_fails_on_all_with_its_name(does_evaluate: bool) -> None:
    told = run_ranks(unused_on_one_rank, 2, does_evaluate)
    assert told[1][0] == "SMDDPMismatch"
    assert told[0][0] == "SMDDPPeerLost"
    for _, text in told:
        assert "sometimes.weight" in text
        assert "find_unused_parameters=True" in text


def recovers(rank: int, world_size: int) -> None:
    """An error of the user's in backward, on all ranks, before anything was sent."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            raise ArithmeticError("on purpose")

    with smddp():
        ddp = DistributedDataParallel(nn.Linear(WIDTH, 2), find_unused_parameters=True)
        name, _, _ = raised(Failing.apply(ddp(torch.ones(1, WIDTH))).sum().backward)
        assert name == "ArithmeticError"
        loss_of(ddp, 0).backward()
        assert_same_bits({"grad": ddp.module.weight.grad})


def test_an_error_of_the_users_in_backward_can_be_survived() -> None:
    run_ranks(recovers, 2)


def gradient_too_late(rank: int, world_size: int) -> tuple[str, str]:
    """Two backwards of one forward share a trunk, whose bucket went with the first."""
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

    class Trunk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, 2)
            self.other = nn.Linear(WIDTH, 2)
            self.trunk = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            return self.head(h), self.other(h)

    with smddp():
        ddp = DistributedDataParallel(Trunk(), bucket_cap_mb=1 / 8192)
        one, two = ddp(torch.ones(1, WIDTH))
        one.sum().backward(retain_graph=True)
        name, text, _ = raised(two.sum().backward)
    return name, text


def test_a_second_gradient_for_a_bucket_that_has_gone_is_an_error() -> None:
    for name, text in run_ranks(gradient_too_late, 2):
        assert name == "SMDDPUnsupported"
        assert "parameter trunk." in text
        assert "find_unused_parameters=True" in text
