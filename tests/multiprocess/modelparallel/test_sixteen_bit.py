# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""16-bit training of a model on several ranks, beside plain torch in one process.

Where each parameter is used once in a microbatch the bits are the same: two microbatches add up to
the same sum in either order, and all else is done tensor by tensor. Specification, section 6.7.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from harness import run_ranks
from parted_models import batch, by_hand, cut, loss_of, network, step_function
from plain_sixteen_bit import Make, PlainSixteenBit, halves
from torch import Tensor, nn
from torch.nn import functional
from torch_ranks import raised

DEADLINE_S = 90.0
WIDTH = 8
DYNAMIC: dict[str, Any] = {
    "static_loss_scale": None,
    "dynamic_loss_scale": True,
    "dynamic_loss_args": {"init_scale": 512.0, "scale_window": 3},
}
OPTIMIZERS: dict[str, Make] = {
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "SGD, two groups": lambda p: torch.optim.SGD(
        [{"params": p[:5], "lr": 0.1}, {"params": p[5:]}], lr=0.05, momentum=0.9
    ),
    "LAMB, the norm of all gradients": lambda p: lamb(p, lr=0.01, max_grad_norm=0.05),
}


def lamb(parameters: list[Any], **options: Any) -> Any:
    import smdistributed.modelparallel.torch as smp

    return smp.optimizers.FusedLAMB(parameters, **options)


class WideNorm(nn.LayerNorm):
    """A norm that a script keeps in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class Part(nn.Module):
    """Norms in fp32, a buffer, a frozen weight, and one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.batch_norm = nn.BatchNorm1d(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = WideNorm(WIDTH)
        self.frozen = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("factor", torch.tensor(1.1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.down(torch.relu(self.batch_norm(self.up(x * self.frozen))))
        return self.norm(x + hidden) * self.factor


class Head(nn.Module):
    """Returns numbers of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        logits = self.linear(x)
        return {"logits": logits, "best": (logits.argmax(-1), [logits.double()])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(2))
        self.head = Head()

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        assert x.dtype in (torch.float16, torch.bfloat16)
        assert mask.dtype is torch.bool
        for part in self.parts:
            x = part(x)
        return self.head(x)


def net() -> Net:
    torch.manual_seed(3)
    return Net()


def data(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, WIDTH, generator=generator)
    return x, torch.randint(0, 3, (8,), generator=generator)


class Plain(PlainSixteenBit):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[0], dtype=torch.bool)
        return self.model(x.to(self.dtype), mask)["logits"].float()


def plain_one(dtype: torch.dtype, make: Make, scale: float = 1.0) -> Plain:
    return Plain(net(), dtype, make, scale, kept=(nn.BatchNorm1d, WideNorm))


def wrapped(smp: Any, make: Make, places: tuple[int, int, int] = (0, 1, 1)) -> tuple[Any, Any]:
    """A model that keeps its norms in fp32, and its optimizer.

    Args:
        places: of both parts and the head.
    """
    inner = net()
    for module, place in zip((*inner.parts, inner.head), places, strict=True):
        smp.set_partition(module, place)
    model = smp.DistributedModel(inner)
    for part in inner.parts:
        part.norm.float()
    return model, smp.DistributedOptimizer(make(list(model.parameters())), **DYNAMIC)


def step_of(smp: Any, seen: list[Any]) -> Callable[..., Any]:
    @smp.step
    def train(model: Any, x: Tensor, y: Tensor) -> Any:
        from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred

        outputs = model(x, torch.ones(x.shape[0], dtype=torch.bool))
        best, (wide,) = outputs["best"]
        lazy = [type(each) is Deferred and each.is_pending for each in (outputs["logits"], best)]
        loss = functional.cross_entropy(outputs["logits"], y)
        model.backward(loss)
        seen.append((*lazy, loss.dtype, best.dtype, wide.dtype, outputs["logits"].dtype))
        return {"loss": loss, "best": best}

    return train


def assert_same(smp: Any, model: Any, optimizer: Any, plain: Plain, what: str) -> None:
    """Bit for bit, on every rank: parameters, buffers, masters, states."""
    expected = plain.model.state_dict()
    for name, tensor in (*model.local_named_parameters(), *model.local_named_buffers()):
        assert torch.equal(tensor, expected[name]), (what, name)
        assert tensor.dtype is expected[name].dtype, (what, name)
    state = optimizer.state_dict()
    masters = plain.named_masters()
    assert state["fp16_states"]["masters"].keys() == masters.keys(), what
    for name, master in masters.items():
        assert torch.equal(state["fp16_states"]["masters"][name], master), (what, name)
    assert_same_states(state, plain.optimizer.state_dict(), what)


def assert_same_states(found: Any, expected: Any, what: str) -> None:
    assert found["param_groups"] == expected["param_groups"], what
    assert list(found["state"]) == list(expected["state"]), what
    for index, entries in expected["state"].items():
        for key, value in entries.items():
            other = found["state"][index][key]
            assert torch.equal(torch.as_tensor(other), torch.as_tensor(value)), (what, index, key)


def spoil(parameter: Tensor, microbatch: int, value: float) -> Any:
    """The gradient of one microbatch, the next time."""
    count = iter(range(100))

    def hook(gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, value) if next(count) == microbatch else gradient

    return parameter.register_hook(hook)


def check_training(smp: Any, model: Any, optimizer: Any, plain: Plain, name: str) -> None:
    """Six steps; in the second one, one microbatch overflows, on one rank."""
    seen: list[Any] = []
    train = step_of(smp, seen)
    scales = []
    for number in range(6):
        optimizer.zero_grad()
        plain.zero_grad()
        plain.scale = optimizer.loss_scale
        spoiled = None
        if number == 1 and smp.rank() == 1:
            parameter = model.get_module().head.linear.bias
            spoiled = spoil(parameter, 1, float("inf") if "SGD" in name else float("nan"))
        outputs = train(model, *data(number))
        plain.backward(functional.cross_entropy, halves(*data(number)))
        if spoiled is not None:
            spoiled.remove()
        assert outputs["best"].concat().dtype is torch.int64
        assert outputs["loss"].outputs[0].dtype is torch.float32
        if number == 1:
            assert optimizer.clip_master_grads(0.5) == -1
            optimizer.step()
            assert optimizer.overflow
        else:
            max_norm = 0.5 if number > 3 else None
            found = None if max_norm is None else optimizer.clip_master_grads(max_norm)
            optimizer.step()
            norm = plain.update(max_norm)
            assert found in (None, norm), "the norm"
            assert not optimizer.overflow
        scales.append(optimizer.loss_scale)
        assert_same(smp, model, optimizer, plain, f"{name}, step {number}")
    is_half = plain.dtype is torch.float16
    assert scales == ([512.0, 256.0, 256.0, 256.0, 512.0, 512.0] if is_half else [1.0] * 6)
    assert len({tuple(each) for each in smp.allgather(scales, smp.WORLD)}) == 1
    if smp.rank() == 0:
        assert seen[-1] == (
            True,
            True,
            torch.float32,
            torch.int64,
            torch.float64,
            torch.float32,
        ), "results were looked at, or cast wrongly"


def check_resuming(smp: Any, dtype: torch.dtype, make: Make) -> None:
    """Whole, in parts, in swapped parts, into other partitions; before and after the first step."""
    train = step_of(smp, [])

    def run(model: Any, optimizer: Any, numbers: range) -> None:
        for number in numbers:
            optimizer.zero_grad()
            train(model, *data(number))
            optimizer.step()

    model, optimizer = wrapped(smp, make)
    run(model, optimizer, range(3))
    whole = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    part = copy.deepcopy((model.local_state_dict(), optimizer.local_state_dict()))
    assert part[1]["_smp_is_partial"] is part[1]["fp16_states"]["_smp_is_partial"] is True
    parts = smp.allgather(part, smp.MP_GROUP)
    names = [set(theirs["fp16_states"]["masters"]) for _, theirs in parts]
    assert names[0] | names[1] == set(whole[1]["fp16_states"]["masters"])
    assert not names[0] & names[1]
    none = {"_smp_is_partial": True}
    both = copy.deepcopy(parts)
    for theirs in both[1:]:
        both[0][0].update(theirs[0])
        both[0][1]["state"].update(theirs[1]["state"])
        both[0][1]["fp16_states"]["masters"].update(theirs[1]["fp16_states"]["masters"])
    all_or_none = (none, none) if smp.rank() else both[0]
    # Of training in fp32: masters stay.
    del part[1]["fp16_states"]
    optimizer.load_state_dict(copy.deepcopy(part[1]))
    part = parts[smp.rank()]
    run(model, optimizer, range(3, 6))
    expected = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    del model, optimizer
    cases = {
        "whole": (whole, (0, 1, 1), False),
        "whole, before the first step": (whole, (0, 1, 1), True),
        "parts, before the first step": (part, (0, 1, 1), True),
        "swapped parts": (parts[1 - smp.rank()], (0, 1, 1), False),
        "other partitions": (part, (1, 0, 1), True),
        "parts on one rank": (all_or_none, (0, 1, 1), False),
        "parts on one rank, before the first step": (all_or_none, (0, 1, 1), True),
    }
    for what, (loaded, places, is_early) in cases.items():
        model, optimizer = wrapped(smp, make, places)
        assert raised(optimizer.local_state_dict)[0] == "ModelNotPartitionedError"
        if not is_early:
            run(model, optimizer, range(7, 8))
        model.load_state_dict(copy.deepcopy(loaded[0]))
        optimizer.load_state_dict(copy.deepcopy(loaded[1]))
        if is_early and loaded[1] is not none:
            assert optimizer.state_dict()["fp16_states"] is not None
        run(model, optimizer, range(3, 6))
        found = optimizer.state_dict()
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected[0][name]), (what, name)
        for name, value in found["fp16_states"]["masters"].items():
            assert torch.equal(value, expected[1]["fp16_states"]["masters"][name]), (what, name)
        if dtype is torch.float16:
            scaler = expected[1]["fp16_states"]["loss_scaler"]
            assert found["fp16_states"]["loss_scaler"] == scaler, what
        assert_same_states(found, expected[1], what)
        del model, optimizer


def check_tied(smp: Any, dtype: torch.dtype, make: Make) -> None:
    """Tied weights, gradients in 16 bits: as plain torch, to the unit of 16 bits."""
    model = smp.DistributedModel(cut(network(), 2))
    optimizer = smp.DistributedOptimizer(make(list(model.parameters())), static_loss_scale=64.0)
    scale = optimizer.loss_scale
    plain = PlainSixteenBit(network(), dtype, make, scale)
    train = step_function()
    for number in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        train(model, *batch(number))
        plain.backward(loss_of, halves(*batch(number)))
        optimizer.step()
        plain.update()
        expected = plain.named_masters()
        unit = torch.finfo(dtype).eps
        for name, master in optimizer.local_fp16_states()["masters"].items():
            # A step of Adam's is 0.01, whatever the size of a gradient.
            torch.testing.assert_close(master, expected[name], rtol=unit, atol=5e-3)
    table = optimizer.param_name_to_index()
    assert table == {name: i for i, (name, _) in enumerate(model.named_parameters())}
    assert smp.state.param_name_to_index_tp_group == [table]


def check_inside_a_step(smp: Any) -> None:
    model, optimizer = wrapped(smp, OPTIMIZERS["Adam, fused"])

    def inside(model: Any, x: Tensor, y: Tensor) -> None:
        model.backward(functional.cross_entropy(model(x, x[:, 0] > 0)["logits"], y))
        optimizer.step()

    name, text, _ = raised(smp.step(inside), model, *data(0))
    assert name == ("RuntimeError" if smp.rank() == 0 else "StepAborted"), text
    assert "inside of a step" in text
    smp.mp_barrier()


def two_partitions(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    for key, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        smp.init(by_hand(2, **{key: True}))
        assert getattr(smp.state.cfg, key)
        for name, make in OPTIMIZERS.items():
            model, optimizer = wrapped(smp, make)
            check_training(smp, model, optimizer, plain_one(dtype, make), name)
            del model, optimizer
        make = OPTIMIZERS["AdamW, foreach"]
        check_resuming(smp, dtype, make)
        check_tied(smp, dtype, make)
        check_inside_a_step(smp)
        smp.barrier()
        smp.reset()


def test_two_partitions() -> None:
    run_ranks(two_partitions, 2, deadline_s=DEADLINE_S)


def replicas(rank: int, world_size: int) -> None:
    """Two of two partitions: gradients are means, and one overflow anywhere skips everywhere."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2, ddp=True, fp16=True))
    make = OPTIMIZERS["AdamW, foreach"]
    model, optimizer = wrapped(smp, make)
    assert model.module.module.module is model.get_module()
    plain = plain_one(torch.float16, make)
    train = step_of(smp, [])
    for number in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        plain.scale = optimizer.loss_scale
        if number == 1 and smp.rank() == 3:
            spoiled = spoil(model.get_module().head.linear.bias, 0, float("inf"))
        if number == 2 and smp.rank() == 3:
            spoiled.remove()
        with_own = model.no_sync() if number == 1 else torch.enable_grad()
        with with_own:
            train(model, *data(2 * number + smp.dp_rank()))
        if number != 1:
            found = []
            start = copy.deepcopy(dict(plain.model.named_buffers()))
            for replica in (1, 0):  # buffers are those of replica 0
                for name, buffer in plain.model.named_buffers():
                    buffer.copy_(start[name])
                plain.zero_grad()
                plain.backward(functional.cross_entropy, halves(*data(2 * number + replica)))
                found.append([each.grad for each in plain.model.parameters()])
            plain.average(found)
        if number == 1:
            # Only one replica has seen it: what is agreed on must reach the other.
            optimizer.step()
            assert optimizer.overflow
            assert optimizer.loss_scale == plain.scale / 2
        else:
            norm = optimizer.clip_master_grads(0.5)
            optimizer.step()
            assert norm == plain.update(0.5)
        if number != 1:
            expected = dict(plain.model.named_parameters())
            for name, parameter in model.local_named_parameters():
                assert torch.equal(parameter, expected[name]), (number, name)
    smp.barrier()
    smp.reset()


def test_two_replicas_of_two_partitions() -> None:
    run_ranks(replicas, 4, deadline_s=DEADLINE_S)
