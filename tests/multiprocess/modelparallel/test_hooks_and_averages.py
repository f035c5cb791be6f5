# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks run where their module runs, and averages of weights are those of one process.

The way to average is that of docs/model_parallel.md, 'Averages of weights'.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DEADLINE_S = 60.0
MICROBATCHES = 2
Log = list[Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.relu(self.middle(torch.relu(self.first(x)))))
        return result


class Scaled(Net):
    """With a buffer of the user's, shaped as what stands for one of another rank."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()).expand(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)


def started(net: Net) -> tuple[Any, Any, Any, Callable[..., Any]]:
    """The middle layer on rank 1."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": MICROBATCHES, "auto_partition": False,
              "default_partition": 0})  # fmt: skip
    smp.set_partition(net.middle, 1)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        model.backward(loss)
        return loss.detach()

    return smp, model, optimizer, train


def plain_step(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    pairs = zip(*(each.chunk(MICROBATCHES) for each in data()), strict=True)
    for x, y in pairs:
        (nn.functional.mse_loss(net(x), y) / MICROBATCHES).backward()
    optimizer.step()


def _twice(log: Log, what: str) -> Callable[..., Any]:
    def hook(*arguments: Any) -> Any:
        log.append(what)
        changed = arguments[-1]
        return (changed[0] * 2,) if isinstance(changed, tuple) else changed * 2

    return hook


def _twice_of_inputs(log: Log, what: str) -> Callable[..., Any]:
    def hook(module: nn.Module, of_inputs: Any, of_outputs: Any) -> Any:
        log.append(what)
        return (of_inputs[0] * 2,)

    return hook


def _noted(log: Log, what: str) -> Callable[..., Any]:
    return lambda *_: log.append(what)


HOOKS: dict[str, Callable[[nn.Linear, Log], Any]] = {
    "forward": lambda m, log: m.register_forward_hook(_twice(log, "forward")),
    "before": lambda m, log: m.register_forward_pre_hook(_twice(log, "before")),
    "backward": lambda m, log: m.register_full_backward_hook(_twice_of_inputs(log, "backward")),
    "before_backward": lambda m, log: m.register_full_backward_pre_hook(_twice(log, "back")),
    "parameter": lambda m, log: m.weight.register_hook(_twice(log, "parameter")),
    "accumulated": lambda m, log: m.weight.register_post_accumulate_grad_hook(_noted(log, "sum")),
}


def _with_hook(rank: int, size: int, kind: str) -> tuple[dict[str, bool], Log, Log]:
    logs: tuple[Log, Log] = [], []
    net, reference = made(), made()
    HOOKS[kind](net.middle, logs[0])
    HOOKS[kind](reference.middle, logs[1])
    _, model, optimizer, train = started(net)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        train(*data())
        optimizer.step()
        plain_step(reference, plain)
    wanted = dict(reference.named_parameters())
    same = {name: torch.allclose(p, wanted[name]) for name, p in model.local_named_parameters()}
    return same, *logs


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_runs_where_its_module_runs(kind: str) -> None:
    results = run_ranks(_with_hook, 2, kind, deadline_s=DEADLINE_S)
    for rank, (same, called, wanted) in enumerate(results):
        assert same
        assert all(same.values()), same
        assert called == (wanted if rank == 1 else [])


@contextlib.contextmanager
def averages_in(model: Any, averaged: Any) -> Iterator[None]:
    """As in the guide."""
    theirs = dict(averaged.module.named_parameters())
    mine = dict(model.local_named_parameters())
    kept = {name: parameter.detach().clone() for name, parameter in mine.items()}
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(theirs[name])
        try:
            yield
        finally:
            for name, parameter in mine.items():
                parameter.copy_(kept[name])


def _refused(attempt: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, RuntimeError)) as raised:
        attempt()
    return str(raised.value)


def _averaged(rank: int, size: int) -> dict[str, Any]:
    reference = made()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    smp, model, optimizer, train = started(made())
    x, _ = data()

    @smp.step
    def evaluate(x: Tensor) -> Tensor:
        result: Tensor = model(x)
        return result

    averages: list[AveragedModel] = []
    for number in range(3):
        optimizer.zero_grad()
        train(*data())
        optimizer.step()
        plain_step(reference, plain)
        if number == 0:
            averages = [
                AveragedModel(each, multi_avg_fn=get_ema_multi_avg_fn(0.5))
                for each in (model.get_module(), reference)
            ]
        averages[0].update_parameters(model.get_module())
        averages[1].update_parameters(reference)
    before = model.state_dict()
    with averages_in(model, averages[0]), torch.no_grad():
        evaluated = evaluate(x).concat()
        state = model.state_dict()
    after = model.state_dict()
    wanted = averages[1].module.state_dict()
    return {
        "evaluated": torch.allclose(evaluated, averages[1](x)),
        "state": all(torch.allclose(state[name], wanted[name]) for name in wanted),
        "restored": all(torch.equal(before[name], after[name]) for name in before),
        "moved": not torch.allclose(before["middle.weight"], state["middle.weight"]),
        "errors": [
            _refused(lambda: averages[0](x)),
            _refused(lambda: copy.deepcopy(model)),
            _refused(lambda: AveragedModel(model)),
            _refused(lambda: pickle.dumps(model)),
        ],
    }


def test_averages_of_weights_as_the_guide_says() -> None:
    for result in run_ranks(_averaged, 2, deadline_s=DEADLINE_S):
        called, copied, averaged, pickled = result.pop("errors")
        assert all(result.values()), result
        assert "parameters are on another rank" in called
        assert "copy the module inside" in copied
        assert "copy the module inside" in averaged
        assert "model.state_dict()" in pickled


def _home(rank: int, size: int) -> bool:
    """`model.cpu()` brings all of it here, and what is copied then is whole."""
    torch.manual_seed(0)
    _, model, _, train = started(Scaled())
    train(*data())
    model.cpu()
    copied = copy.deepcopy(model.get_module())
    x, _ = data()
    return torch.equal(copied(x), model(x))


def test_a_copy_of_the_whole_model_runs() -> None:
    assert run_ranks(_home, 2, deadline_s=DEADLINE_S) == [True, True]
