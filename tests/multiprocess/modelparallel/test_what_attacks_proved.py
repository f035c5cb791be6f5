# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that were silently wrong, hung or kept memory, up to 2.0.0 where nothing else is said.

Each is compared with one process, or must be one error that says what to do.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_ranks
from heard import listen
from torch import Tensor, nn
from torch.nn import functional

from smdistributed.modelparallel.exceptions import SMPError

DEADLINE_S = 60.0
MICROBATCHES = 4
WIDTH = 4

Way = Callable[["Net", Tensor], Tensor]


class Versatile(nn.Module):
    """Does what `way` says with its input, in addition to a layer."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.full((3,), 7))
        self.kept: Any = None

    def forward(self, x: Tensor, *args: Any, way: str = "", **kwargs: Any) -> Any:
        y: Tensor = self.dense(x)
        if way == "sets":
            self.kept = y.pow(2).mean()
        elif way == "resets":
            self.kept = None
        elif way == "deletes":
            del self.kept
        elif way == "keeps":
            self.kept = y
        elif way == "uses":
            y = y + self.kept
        elif way == "calls":
            y = args[0](y)
        elif way == "first key":
            y = y * (1.0 if isinstance(next(iter(kwargs["box"])), bool) else 3.0)
        elif way == "sign":
            y = y * (1.0 if str(args[0]).startswith("-") else 3.0)
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.remote = Versatile()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.remote(self.first(x))
        return result


def reset_attribute(net: Net, x: Tensor) -> Tensor:
    y = net.remote(net.first(x), way="sets")
    y = net.remote(y, way="resets")
    return y.sum() + (100.0 if net.remote.kept is not None else 0.0)


def deleted_attribute(net: Net, x: Tensor) -> Tensor:
    y = net.remote(net.first(x), way="sets")
    y = net.remote(y, way="deletes")
    return y.sum() + (100.0 if "kept" in net.remote.__dict__ else 0.0)


def functions_as_arguments(net: Net, x: Tensor) -> Tensor:
    y = net.first(x)
    for function in (functional.gelu, torch.relu, torch.tanh):
        y = net.remote(y, function, way="calls")
    return y.sum()


def keys_that_are_equal(net: Net, x: Tensor) -> Tensor:
    y = net.first(x)
    for key in (1, True, 1.0, True, 1):
        y = net.remote(y, way="first key", box={key: x})
    return y.sum()


def zeros_that_are_equal(net: Net, x: Tensor) -> Tensor:
    y = net.first(x)
    for number in (complex(0.0, 0.0), complex(-0.0, 0.0), 0.0, -0.0, complex(0.0, 0.0)):
        y = net.remote(y, number, way="sign")
    return y.sum()


def method_of_a_tensor(net: Net, x: Tensor) -> Tensor:
    y = net.first(x)
    return net.remote(y, y.mul, way="calls").sum()  # type: ignore[no-any-return]


def refused_gradient_that_is_caught(net: Net, x: Tensor) -> Tensor:
    """The pass that was refused must not count in the one that follows."""
    y = net(x)
    loss = (y * y).sum() if float(y.sum()) < 1e9 else y.sum()  # y has come: its node is here
    with contextlib.suppress(SMPError):
        torch.autograd.grad(loss, [net.first.weight], retain_graph=True)
    return loss


def hook_before_use(net: Net, x: Tensor) -> Tensor:
    y = net(x)
    y.register_hook(lambda gradient: 2.0 * gradient)
    return net.remote(y).sum() + y.sum()


def hook_after_counting(net: Net, x: Tensor) -> Tensor:
    """A use without a gradient leaves nothing out."""
    y = net(x)
    _ = (y.detach() > 0).sum() + y.argmax()
    with torch.no_grad():
        net.remote(y)
    y.register_hook(lambda gradient: 2.0 * gradient)
    return y.sum()


RIGHT: tuple[Way, ...] = (
    hook_before_use,
    hook_after_counting,
    method_of_a_tensor,
    refused_gradient_that_is_caught,
    reset_attribute,
    deleted_attribute,
    functions_as_arguments,
    keys_that_are_equal,
    zeros_that_are_equal,
)


def partial_gradient(net: Net, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x)
    return net(x).sum() + slope.sum()


def inputs_of_backward(net: Net, x: Tensor) -> Tensor:
    net(x).sum().backward(inputs=list(net.first.parameters()))  # type: ignore[no-untyped-call]
    return net(x).sum()


def second_derivative(net: Net, x: Tensor) -> Tensor:
    net(x).sum().backward(create_graph=True)  # type: ignore[no-untyped-call]
    return net(x).sum()


def history_in_an_attribute(net: Net, x: Tensor) -> Tensor:
    net.remote(net.first(x), way="keeps")
    y = net.remote(net.first(2.0 * x), way="uses")
    return y.sum()


def another_thread(net: Net, x: Tensor) -> Tensor:
    found: list[Exception] = []

    def call() -> None:
        try:
            float(net(x).sum())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise found[0]


def method_of_a_list(net: Net, x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    net.remote(net.first(x), seen.append, way="calls")
    return seen[0].sum()


def hook_after_use(net: Net, x: Tensor) -> Tensor:
    y = net(x)
    z = net.remote(y)
    y.register_hook(lambda gradient: 2.0 * gradient)
    return z.sum() + y.sum()


def kept_gradient_after_use(net: Net, x: Tensor) -> Tensor:
    y = net(x)
    z = net.remote(y)
    y.retain_grad()
    return z.sum()


def gradient_of_what_was_used(net: Net, x: Tensor) -> Tensor:
    y = net(x)
    z = net.remote(y).sum() + y.pow(2).sum()
    (slope,) = torch.autograd.grad(z, [y], retain_graph=True)
    return z + slope.sum()


def backward_to_what_was_used(net: Net, x: Tensor) -> Tensor:
    y = net(x)
    z = net.remote(y).sum() + y.pow(2).sum()
    z.backward(inputs=[y], retain_graph=True)  # type: ignore[no-untyped-call]
    return z


def zeroed_gradients(net: Net, x: Tensor) -> Tensor:
    net.zero_grad()
    return net(x).sum()


def zeroed_by_the_optimizer(net: Net, x: Tensor) -> Tensor:
    OPTIMIZER[0].zero_grad()
    return net(x).sum()


def tensor_without_values(net: Net, x: Tensor) -> Tensor:
    return net.remote(torch.empty(2, WIDTH, device="meta")).sum()  # type: ignore[no-any-return]


# Of the job of this rank.
OPTIMIZER: list[Any] = []

REFUSED: dict[Way, str] = {
    hook_after_use: "register_hook() asks for the gradient of a result of",
    kept_gradient_after_use: "retain_grad() asks for the gradient of a result of",
    gradient_of_what_was_used: "torch.autograd.grad() asks for the gradient of a result of",
    backward_to_what_was_used: "backward(inputs=...) asks for the gradient of a result of",
    zeroed_gradients: "zero_grad() was called inside of a step",
    zeroed_by_the_optimizer: "optimizer.zero_grad() was called inside of a step",
    tensor_without_values: "It is on the device 'meta' and has no values",
    method_of_a_list: "changed its argument",
    partial_gradient: "torch.autograd.grad(), backward(inputs=...)",
    inputs_of_backward: "torch.autograd.grad(), backward(inputs=...)",
    second_derivative: "create_graph=True",
    history_in_an_attribute: "kept a tensor with a history",
    another_thread: "several microbatches take turns",
}


def ways_of_a_step(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net, whole = Net(), Net()
    whole.load_state_dict(net.state_dict())
    smp.set_partition(net.remote, 1)
    model = smp.DistributedModel(net)
    OPTIMIZER[:] = [smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))]
    way: Way = reset_attribute

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss = way(net, x)
        model.backward(loss)
        return loss.detach()

    def train_twice() -> None:
        train(batch)  # it may wait for each result, to learn what it is
        train(batch)

    batch = torch.randn(MICROBATCHES * 2, WIDTH, generator=torch.Generator().manual_seed(1))
    for way in (*RIGHT, *REFUSED, *RIGHT):
        for module in (net, whole):
            module.zero_grad()
            module.remote.kept = None
        if way in REFUSED:
            with pytest.raises(Exception) as raised:  # noqa: PT011 -- on rank 1 it is StepAborted
                train_twice()
            told = "".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
            assert REFUSED[way] in told, (way.__name__, told)
            continue
        losses = train(batch).outputs
        assert torch._C._is_multithreading_enabled(), "what a step turns off is on again"
        for loss, x in zip(losses, batch.chunk(MICROBATCHES), strict=True):
            whole.remote.kept = None
            expected = way(whole, x)
            (expected / MICROBATCHES).backward()  # type: ignore[no-untyped-call]
            assert torch.allclose(loss, expected, atol=1e-5), (way.__name__, loss, expected)
        for name, parameter in model.local_named_parameters():
            wanted = whole.get_parameter(name.removeprefix("module.")).grad
            assert torch.allclose(parameter.grad, wanted, atol=1e-5), (way.__name__, name)


def test_ways_of_a_step() -> None:
    run_ranks(ways_of_a_step, 2, deadline_s=DEADLINE_S)


def thirds(rank: int, world_size: int) -> None:
    """A third is not rounded to the default dtype on its way to a loss of another one."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": 3, "auto_partition": False, "default_partition": 0})
    torch.manual_seed(0)
    net, whole = Net().double(), Net().double()
    whole.load_state_dict(net.state_dict())
    smp.set_partition(net.remote, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss = net(x).pow(2).mean()
        model.backward(loss)
        return loss.detach()

    batch = torch.randn(6, WIDTH, dtype=torch.float64)
    for _ in range(3):  # later steps know the loss by its placeholder
        net.zero_grad()
        train(batch)
    whole(batch).pow(2).mean().backward()
    for name, parameter in model.local_named_parameters():
        wanted = whole.get_parameter(name.removeprefix("module.")).grad
        assert torch.allclose(parameter.grad, wanted, rtol=1e-12, atol=0.0), name


def test_a_third_of_a_gradient_is_exact() -> None:
    run_ranks(thirds, 2, deadline_s=DEADLINE_S)


def beside_a_step(rank: int, world_size: int) -> None:
    """What a thread beside the step sets on its own module stays."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0})
    net, mine = Net(), nn.Dropout()
    smp.set_partition(net.remote, 1)
    model = smp.DistributedModel(net)
    is_over = threading.Event()
    changed: list[int] = []

    def evaluate() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            mine.state = [number]
            mine.train(number % 2 == 0)
            is_over.wait(0.002)
            if mine.state != [number] or mine.training != (number % 2 == 0):
                changed.append(number)

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss = net(x).sum()
        model.backward(loss)
        return loss.detach()

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        for _ in range(100):
            train(torch.ones(4, WIDTH))
    finally:
        is_over.set()
        thread.join()
    assert not changed


def test_a_thread_beside_a_step_keeps_its_attributes() -> None:
    run_ranks(beside_a_step, 2, deadline_s=DEADLINE_S)


UNIT: contextvars.ContextVar[float] = contextvars.ContextVar("UNIT", default=1.0)


class Ambient(nn.Module):
    """Uses what belongs to the thread that calls a step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH, bias=False)
        self.devices: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.devices.append(torch.empty(()).device.type)
        y: Tensor = self.dense(x) * UNIT.get()
        return y


def ambience(rank: int, world_size: int) -> None:
    """Every microbatch, whichever thread it runs on, finds what the caller of the step has set."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0})
    torch.manual_seed(0)
    net = nn.Sequential(Ambient(), Ambient())
    smp.set_partition(net[1], 1)
    model = smp.DistributedModel(net)
    threads: set[int] = set()
    units: list[float] = []

    @smp.step
    def train(x: Tensor) -> Tensor:
        threads.add(threading.get_ident())
        units.append(UNIT.get())
        y = model(x)
        loss = y.sum() + float(y.sum()) * 0.0
        UNIT.set(100.0)  # a microbatch's own
        model.backward(loss)
        return loss.detach()

    batch = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
    wanted = [loss.clone() for loss in train(batch).outputs]
    UNIT.set(3.0)
    for device in ("meta", "cpu", "meta"):
        with torch.device(device):
            found = train(batch).outputs
        assert torch.empty(()).device.type == "cpu"
        for loss, one in zip(found, wanted, strict=True):
            assert torch.allclose(loss, 9.0 * one)
        mine = net[rank].devices[-4:]
        assert mine == [device] * 4, (rank, mine)
    if rank == 0:
        assert len(threads) > 1, "the microbatches take turns"
        assert units == [1.0] * 4 + [3.0] * 12
        assert UNIT.get() == 3.0


def test_microbatches_find_what_their_caller_has_set() -> None:
    run_ranks(ambience, 2, deadline_s=DEADLINE_S)


def accumulation(rank: int, world_size: int) -> None:
    """Without a pipeline too, gradients of earlier microbatches are not let go of in silence."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 1, "microbatches": 2})
    model = smp.DistributedModel(nn.Linear(WIDTH, 1))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

    @smp.step
    def train(x: Tensor) -> None:
        optimizer.zero_grad()
        model.backward(model(x).sum())

    with pytest.raises(SMPError, match=r"zero_grad.* was called inside of a step"):
        train(torch.ones(4, WIDTH))
    optimizer.zero_grad()


def test_zero_grad_in_one_of_several_microbatches_is_refused() -> None:
    run_ranks(accumulation, 1, deadline_s=DEADLINE_S)


class Total(nn.Module):
    """Keeps a tensor for whoever called it, and a sum over all that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.last = torch.zeros(())
        self.total = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dense(x)
        self.last = y.sum()
        self.total = self.total + self.last
        return y


def evaluation(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net = nn.Sequential(Total(), Total())
    whole = nn.Sequential(Total(), Total())
    whole.load_state_dict(net.state_dict())
    smp.set_partition(net[1], 1)
    model = smp.DistributedModel(net)

    def seen(module: nn.Sequential, y: Tensor) -> Tensor:
        here, there = module
        assert isinstance(here, Total)
        assert isinstance(there, Total)
        return y.sum() + 10 * here.last + 100 * there.last

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss = model(x).pow(2).mean()
        model.backward(loss)
        return loss.detach()

    @smp.step
    def evaluate(x: Tensor) -> Tensor:
        with torch.no_grad():
            return seen(net, model(x).clone())

    batch = torch.randn(MICROBATCHES * 2, WIDTH, generator=torch.Generator().manual_seed(1))
    train(batch)
    with torch.no_grad():
        for module in (net, whole):
            for each in module:
                assert isinstance(each, Total)
                each.last, each.total = torch.zeros(()), torch.zeros(())
    for _ in range(4):
        found = evaluate(batch).outputs
        with torch.no_grad():
            for mine, x in zip(found, batch.chunk(MICROBATCHES), strict=True):
                assert torch.allclose(mine, seen(whole, whole(x)), atol=1e-5), (rank, mine)
    if rank == 0:
        first, other = net[0], whole[0]
        assert isinstance(first, Total)
        assert isinstance(other, Total)
        assert torch.allclose(first.total, other.total, atol=1e-4)


def test_tensors_that_modules_keep_in_an_evaluation() -> None:
    run_ranks(evaluation, 2, deadline_s=DEADLINE_S)


class BadText(ValueError):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("str is broken")


class Slow(nn.Module):
    """Calls a module of rank 1 late, when the program that called it has failed."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        if self.gate:
            threading.Event().wait(0.5)
        result: Tensor = self.inner(self.dense(x))
        return result


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.slow = Slow("")
        self.is_bad = False

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.slow(self.dense(x))
        if self.is_bad:
            raise ValueError("fails")
        return y


def failures(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": 3,
            "microbatches": 2,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Failing())
    failing = net[1]
    assert isinstance(failing, Failing)
    smp.set_partition(failing, 1)
    smp.set_partition(failing.slow, 2)
    smp.set_partition(failing.slow.inner, 1)
    model = smp.DistributedModel(net)
    body: Callable[[Tensor], Tensor]

    @smp.step
    def train(x: Tensor) -> tuple[Tensor, Tensor]:
        y = body(x)
        loss = y.pow(2).mean()
        model.backward(loss)
        return loss.detach(), y.detach()

    def well(x: Tensor) -> Tensor:
        y: Tensor = model(x)
        return y

    def caught(x: Tensor) -> Tensor:
        h = net[0](x)
        try:
            y: Tensor = failing(h).clone()
        except ValueError:
            y = h
        return y

    def bad_text(x: Tensor) -> Tensor:
        raise BadText

    batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    body = well
    first = train(batch)[0].reduce_mean()

    # A program that was dropped still waited for another rank: its rank never left the step.
    body, failing.is_bad, failing.slow.gate = caught, True, "late"
    train(batch)
    body, failing.is_bad, failing.slow.gate = well, False, ""
    assert torch.allclose(train(batch)[0].reduce_mean(), first)

    # An exception without a text: the other ranks were never told.
    body = bad_text
    with pytest.raises(Exception) as raised:  # noqa: PT011 -- on the others it is StepAborted
        train(batch)
    if rank:
        assert "BadText" in str(raised.value)
    del raised
    body = well
    assert torch.allclose(train(batch)[0].reduce_mean(), first)

    # A batch that does not divide: afterwards ranks drew other random numbers.
    with pytest.raises(Exception):  # noqa: B017, PT011
        train(batch[:3])
    drawn = smp.allgather(float(torch.rand(())), smp.WORLD)
    assert len(set(drawn)) == 1, drawn

    # What a step has returned, and what a failed one has computed, is not kept here.
    results = train(batch)
    references = [weakref.ref(each) for each in results[1].outputs]
    del results
    assert not any(each() is not None for each in references), "kept until the next step"
    gc.disable()
    body, failing.is_bad = well, True
    with pytest.raises(Exception):  # noqa: B017, PT011
        train(torch.ones(4, WIDTH))
    gc.enable()


def test_failures_leave_nothing_behind() -> None:
    run_ranks(failures, 3, deadline_s=DEADLINE_S)


def plain_backward(rank: int, world_size: int) -> bool:
    import smdistributed.modelparallel.torch as smp

    heard = listen()
    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    net = Net()
    smp.set_partition(net.remote, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    for _ in range(2):
        train(torch.ones(MICROBATCHES, WIDTH))
    return sum("gradients are their sum" in text for text in heard.texts) == 1


def test_loss_backward_over_two_partitions_is_told() -> None:
    """Gradients are sums over microbatches; only with one partition a warning said so."""
    assert run_ranks(plain_backward, 2, deadline_s=DEADLINE_S) == [True, True]
