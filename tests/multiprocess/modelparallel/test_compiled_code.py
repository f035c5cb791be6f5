# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch.compile on what calls modules of another rank, and looks at their results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import run_ranks
from torch import Tensor, nn
from torch.nn import functional

DEADLINE_S = 120.0
MICROBATCHES = 4
WIDTH = 4

Tail = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.remote = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.last = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.tail: Tail = looks

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self, self.first(x))


def looks(net: Net, x: Tensor) -> Tensor:
    return scaled(net.remote(x), net.scale)


@torch.compile(backend="eager")
def scaled(y: Tensor, scale: Tensor) -> Tensor:
    return (y * scale).tanh() + 1


@torch.compile(backend="eager")
def calls(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.last(net.remote(2 * x)) + net.remote(x).tanh() * net.scale
    return y


def plain(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.last(net.remote(x))
    return y


def compiled_code(rank: int, world_size: int) -> None:
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

    def body(x: Tensor) -> Tensor:
        loss = functional.mse_loss(model(x), x)
        model.backward(loss)
        return loss.detach()

    def check(function: Callable[[Tensor], Tensor], what: str) -> None:
        net.zero_grad()
        whole.zero_grad()
        batch = torch.randn(MICROBATCHES * 2, WIDTH)
        losses = smp.step(function)(batch).outputs
        for loss, x in zip(losses, batch.chunk(MICROBATCHES), strict=True):
            expected = functional.mse_loss(whole(x), x)
            (expected / MICROBATCHES).backward()  # type: ignore[no-untyped-call]
            assert torch.allclose(loss, expected, atol=1e-5), (what, loss, expected)
        for name, parameter in model.local_named_parameters():
            wanted = whole.get_parameter(name.removeprefix("module.")).grad
            if wanted is not None:
                assert torch.allclose(parameter.grad, wanted, atol=1e-5), (what, name)

    for tail in (looks, calls, plain):
        net.tail = whole.tail = tail
        check(body, getattr(tail, "__name__", "a function"))
    check(torch.compile(body, backend="eager"), "the body of a step")
    net.remote.compile(backend="eager")
    check(body, "a module of another rank")
    net.compile(backend="eager")
    check(body, "the model")


def test_compiled_code_around_modules_of_another_rank() -> None:
    """Up to 2.0.0 the compiler went into the pipeline's own code, and broke what it made there."""
    run_ranks(compiled_code, 2, deadline_s=DEADLINE_S)
