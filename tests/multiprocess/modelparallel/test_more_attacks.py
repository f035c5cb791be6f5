# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of replicas, late parts of models and odd exceptions that hung, crashed or misled."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from heard import listen
from torch import Tensor, nn

from smdistributed.modelparallel.exceptions import SMPError

DEADLINE_S = 60.0
WIDTH = 4


class Two(nn.Module):
    """One layer here, two on the other rank."""

    def __init__(self) -> None:
        super().__init__()
        self.here = nn.Linear(WIDTH, WIDTH)
        self.there = nn.Linear(WIDTH, WIDTH)
        self.also_there = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, both: bool = True) -> Tensor:
        y: Tensor = self.there(self.here(x))
        return self.also_there(y) if both else y


def _start(net: nn.Module, remote: list[nn.Module], **config: Any) -> Any:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": 2,
            "microbatches": 2,
            "auto_partition": False,
            "default_partition": 0,
            **config,
        }
    )
    for module in remote:
        smp.set_partition(module, 1)
    return smp.DistributedModel(net)


# --- replicas -------------------------------------------------------------------------------------


def different_parameters(rank: int, world_size: int, freezes: bool) -> None:
    """Replicas use different parameters in the first pass that is overlapped."""
    import smdistributed.modelparallel.torch as smp

    net = Two()
    model = _start(net, [net.there, net.also_there], ddp=True)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

    @smp.step
    def train(x: Tensor, both: bool) -> None:
        model.backward(net(x, both).pow(2).mean())

    for number in range(4):
        both = smp.dp_rank() == 0 or number < 2
        if freezes:
            net.here.bias.requires_grad_(number < 2)
            net.there.bias.requires_grad_(number < 2)
        is_quiet = number < 2 and not freezes
        with model.no_sync() if is_quiet else contextlib.nullcontext():
            train(torch.ones(4, WIDTH), both)
        if not is_quiet:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("freezes", [False, True])
def test_replicas_that_use_different_parameters_do_not_wait_in_a_circle(freezes: bool) -> None:
    run_ranks(different_parameters, 4, freezes, deadline_s=DEADLINE_S)


# --- parts that come late -------------------------------------------------------------------------


class Late(nn.Module):
    """Makes a buffer, a parameter and a module when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(WIDTH))
            self.scale = nn.Parameter(torch.full((WIDTH,), 2.0))
            self.extra = nn.Linear(WIDTH, WIDTH, bias=False)
            nn.init.eye_(self.extra.weight)
        y: Tensor = self.extra(self.dense(x) * self.mask * self.scale)
        return y


def made_in_a_forward(rank: int, world_size: int, place: int) -> None:
    import smdistributed.modelparallel.torch as smp

    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Late(), nn.Linear(WIDTH, WIDTH))
    model = _start(net, [net[1]] if place else [net[2]], ddp=world_size == 4)

    @smp.step
    def train(x: Tensor) -> None:
        model.backward(net(x).pow(2).mean())

    for _ in range(3):
        train(torch.ones(4, WIDTH))
    names = {name for name, _ in model.local_named_parameters()}
    buffers = {name for name, _ in model.local_named_buffers()}
    is_here = smp.pp_rank() == place
    assert any(name.endswith("1.scale") for name in names) == is_here
    assert any(name.endswith("1.mask") for name in buffers) == is_here
    if is_here:
        gradient = net[1].scale.grad
        assert gradient is not None
        others = [torch.empty_like(gradient) for _ in range(smp.dp_size())]
        if world_size == 4:
            torch.distributed.all_gather(others, gradient, group=smp.get_dp_process_group())
            assert torch.equal(*others)
    state = model.local_state_dict()
    assert any(key.endswith("1.extra.weight") for key in state) == is_here


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_that_a_forward_makes_are_where_it_runs(ranks: int, place: int) -> None:
    run_ranks(made_in_a_forward, ranks, place, deadline_s=DEADLINE_S)


def scripted(rank: int, world_size: int, place: int) -> None:
    import smdistributed.modelparallel.torch as smp

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())),
        nn.Linear(WIDTH, WIDTH),
    )
    model = _start(net, [net[1]] if place else [net[2]])
    weights = {name: each.detach().clone() for name, each in net.named_parameters()}

    @smp.step
    def train(x: Tensor) -> Tensor:
        y: Tensor = net(x)
        model.backward(y.sum())
        return y.detach()

    x = torch.ones(4, WIDTH)
    (found, _) = train(x).outputs
    y = torch.nn.functional.linear(x[:2], weights["0.weight"], weights["0.bias"])
    y = torch.nn.functional.linear(y, weights["1.0.weight"], weights["1.0.bias"]).relu()
    y = torch.nn.functional.linear(y, weights["2.weight"], weights["2.bias"])
    assert torch.allclose(found, y, atol=1e-6)


@pytest.mark.parametrize("place", [0, 1])
def test_a_scripted_module_is_one_block(place: int) -> None:
    run_ranks(scripted, 2, place, deadline_s=DEADLINE_S)


def lazy(rank: int, world_size: int) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LazyLinear(WIDTH))
    with pytest.raises(TypeError, match=r"1.weight of LazyLinear has no shape yet"):
        _start(net, [net[1]])


def test_a_lazy_module_is_refused_by_name() -> None:
    run_ranks(lazy, 2, deadline_s=DEADLINE_S)


# --- histories and hooks --------------------------------------------------------------------------


class Headstrong(nn.Module):
    """Turns gradients on by itself, or returns its own parameter, or watches its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, way: str) -> Tensor:
        if way == "enables":
            with torch.enable_grad():
                y: Tensor = self.dense(x)
                return y
        if way == "watches":
            x.register_hook(lambda gradient: 2.0 * gradient)
            return self.dense(x)
        return self.dense.weight


def history_without_gradients(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    net = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Headstrong()])
    model = _start(net, [net[1]])

    @smp.step
    def train(x: Tensor, way: str, detaches: bool) -> Tensor:
        with torch.no_grad():
            y = net[1](net[0](x), way)
        assert y.requires_grad
        y = y.detach() if detaches else y
        loss = (net[0](x) @ y.T[:WIDTH, :WIDTH] if way == "returns" else net[0](x) * y).sum()
        model.backward(loss)
        return loss.detach()

    for _ in range(2):
        for way in ("enables", "returns"):
            train(torch.ones(4, WIDTH), way, True)
            with pytest.raises(Exception) as raised:  # noqa: PT011 -- on rank 1 it is StepAborted
                train(torch.ones(4, WIDTH), way, False)
            told = "".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
            assert "was called without gradients" in told, told


def test_a_history_that_only_its_rank_has_is_an_error_where_it_is_asked_for() -> None:
    run_ranks(history_without_gradients, 2, deadline_s=DEADLINE_S)


def hook_on_an_argument(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    net = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Headstrong()])
    model = _start(net, [net[1]])
    heard = listen()

    @smp.step
    def train(x: Tensor) -> None:
        model.backward(net[1](net[0](x), "watches").sum())

    for _ in range(2):
        train(torch.ones(4, WIDTH))
    told = [text for text in heard.texts if "registered a hook on a tensor" in text]
    assert len(told) == (rank == 1)


def test_a_hook_on_what_another_rank_has_given_is_warned_of_once() -> None:
    run_ranks(hook_on_an_argument, 2, deadline_s=DEADLINE_S)


# --- exceptions -----------------------------------------------------------------------------------


class Wrapped(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(f"wrapped {text}")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    number: int


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, which: str) -> Tensor:
        if which:
            raise ERRORS[which][0]()
        y: Tensor = self.dense(x)
        return y


def _of_a_file() -> Exception:
    return ValueError("cannot parse " + os.fsdecode(b"/data/\xff.txt"))


ERRORS: dict[str, tuple[Callable[[], Exception], str]] = {
    "surrogate": (_of_a_file, "cannot parse /data/"),
    "wrapped": (lambda: Wrapped("once"), "wrapped once"),
    "frozen": (lambda: Frozen(3), "Frozen: 3"),
    "stops": (lambda: StopIteration("the end"), "the end"),
    "long": (lambda: ValueError("x" * 10_000_000), "characters ...]"),
}


def odd_exceptions(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    net = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Raises()])
    model = _start(net, [net[1]])

    @smp.step
    def train(x: Tensor, which: str, is_in_body: bool) -> None:
        if is_in_body and which:
            raise ERRORS[which][0]()
        model.backward(net[0](net[1](net[0](x), which)).sum())

    for is_in_body in (False, True):
        for which, (_, text) in ERRORS.items():
            if which == "frozen" and is_in_body:
                continue  # contextlib, through which the leader raises it, cannot either
            with pytest.raises(Exception) as raised:  # noqa: PT011 -- each its own
                train(torch.ones(4, WIDTH), which, is_in_body)
            told = "".join([str(raised.value), *map(str, getattr(raised.value, "__notes__", ()))])
            if not (which == "long" and rank == 0 and is_in_body):
                assert text in told, (which, is_in_body, told[:2000])
                assert len(told) < 1_000_000
            assert "wrapped wrapped" not in told
            if rank == 1:
                assert "Traceback" in told, "it says where the error comes from"
            train(torch.ones(4, WIDTH), "", False)  # and the next step is right


def test_odd_exceptions_are_told_to_every_rank() -> None:
    run_ranks(odd_exceptions, 2, deadline_s=DEADLINE_S)


def returns_what_cannot_travel(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    class Returns(Raises):
        def forward(self, x: Tensor, which: str) -> Any:
            return lambda: x

    net = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Returns()])
    model = _start(net, [net[1]])

    @smp.step
    def train(x: Tensor) -> None:
        model.backward(net[1](net[0](x), "")().sum())

    with pytest.raises((TypeError, SMPError), match="cannot go to another rank"):
        train(torch.ones(4, WIDTH))


def test_a_result_that_cannot_travel_is_said_in_words() -> None:
    run_ranks(returns_what_cannot_travel, 2, deadline_s=DEADLINE_S)
