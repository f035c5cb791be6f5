# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`torch.compile` with torch's DDP and with collectives, over `smddp`: what works over Gloo works.

In the versions before this test, the second step of every compiled DDP raised: the compiler traced
the group's methods, which are Python. The compiled programs must give what the plain ones give, to
the bit: the backend `aot_eager` runs torch's own kernels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import smddp

STEPS = 3  # DDP rebuilds its buckets at the second
BACKEND = "aot_eager"
QUICK = "eager"  # the same tracing, and nothing after it

WIDTH = 12

Call = Callable[[Tensor], Tensor]


class Small(nn.Module):
    """Its normalization has buffers, which DDP broadcasts before every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.linear(x))
        return result


def _batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))


def _ddp() -> DistributedDataParallel:
    torch.manual_seed(3)
    return DistributedDataParallel(Small())


def _train(
    ddp: DistributedDataParallel, rank: int, wrap: Callable[[Any], Any] = lambda call: call
) -> dict[str, Tensor]:
    """Weights and buffers after a few steps; `wrap` compiles the model."""
    model = wrap(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(_batch(rank, step)).pow(2).mean().backward()
        optimizer.step()
    return _result(ddp, model, rank)


def _result(ddp: DistributedDataParallel, model: Any, rank: int) -> dict[str, Tensor]:
    """What `model` gives in evaluation, and all weights and buffers."""
    ddp.eval()
    with torch.no_grad():
        output = model(_batch(rank, STEPS))
    return {"output": output, **{k: v.detach().clone() for k, v in ddp.state_dict().items()}}


def _in_place(ddp: DistributedDataParallel) -> Any:
    ddp.compile(backend=QUICK)
    return ddp


def _function_over(ddp: DistributedDataParallel) -> Any:
    return torch.compile(lambda x: ddp(x), backend=QUICK)


def _compiled(ddp: DistributedDataParallel) -> Any:
    return torch.compile(ddp, backend=BACKEND)


def _whole_step_compiled(rank: int) -> dict[str, Tensor]:
    """Backward is a call in the compiled function; DDP's hooks run below it."""
    ddp = _ddp()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        ddp(x).pow(2).mean().backward()
        optimizer.step()

    compiled = torch.compile(step, backend=QUICK)
    for number in range(STEPS):
        compiled(_batch(rank, number))
    return _result(ddp, ddp, rank)


def _compare(name: str, got: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    torch._dynamo.reset()
    return [f"{name}: {key}" for key in got if not torch.equal(got[key], expected[key])]


def _ddp_variants(rank: int, world_size: int) -> list[str]:
    """What differs from the program that is not compiled: nothing may."""
    with smddp():
        expected = _train(_ddp(), rank)
        differing = _compare("compile(ddp)", _train(_ddp(), rank, _compiled), expected)
        differing += _compare("ddp.compile()", _train(_ddp(), rank, _in_place), expected)
        differing += _compare("function", _train(_ddp(), rank, _function_over), expected)
        differing += _compare("whole step", _whole_step_compiled(rank), expected)
        return differing


def test_compiled_ddp_trains_as_the_plain_one_does() -> None:
    assert run_ranks(_ddp_variants, 2, deadline_s=120) == [[], []]


# ---- collectives in compiled functions -----------------------------------------------------------


def _all_reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def _all_reduce_async(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x + 1
    work.wait()
    return y + z


def _future(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    result: Tensor = work.get_future().wait()[0]
    return result + 1 if work.is_completed() else y


def _barrier(x: Tensor) -> Tensor:
    y = x * 2
    dist.barrier()
    return y + 1


def _barrier_async(x: Tensor) -> Tensor:
    work = dist.barrier(async_op=True)
    y = x * 2
    work.wait()
    return y + 1


def _broadcast_and_reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.broadcast(y, 1)
    z = y + x
    dist.reduce(z, 0)
    return z if dist.get_rank() == 0 else x


def _gathered(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x * 2)
    whole = torch.empty(2 * x.numel())
    dist.all_gather_single(whole, x * 3)
    return torch.cat([*parts, whole])


def _scattered(x: Tensor) -> Tensor:
    share = torch.empty(x.numel() // 2)
    dist.reduce_scatter_single(share, x * 2)
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x * 3)
    return torch.cat([share, swapped])


def _messages(x: Tensor) -> Tensor:
    received = torch.empty_like(x)
    peer = 1 - dist.get_rank()
    for work in [dist.isend(x * 2, peer), dist.irecv(received, peer)]:
        work.wait()
    return received + 1


def _coalesced(x: Tensor) -> Tensor:
    y, z = x * 2, x * 3
    with dist._coalescing_manager():
        dist.all_reduce(y)
        dist.all_reduce(z)
    return y + z


def _functional(x: Tensor) -> Tensor:
    import torch.distributed._functional_collectives as functional

    total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD)


def _questions(x: Tensor) -> Tensor:
    world = dist.group.WORLD
    assert world is not None
    return x * (1 + dist.get_rank(world) + 10 * len(dist.get_process_group_ranks(world)))


def _legacy(x: Tensor) -> Tensor:
    import smdistributed.dataparallel.torch.distributed as legacy

    y = x * 2
    legacy.all_reduce(y)
    return y * (1 + legacy.get_local_rank())


def _in_shared_memory(x: Tensor) -> Tensor:
    from smdistributed.dataparallel.torch import empty_shared

    y = empty_shared(x.shape).copy_(x * 2)
    dist.all_reduce(y)
    return y + 1


_COMPILED: tuple[Call, ...] = (
    _all_reduce,
    _all_reduce_async,
    _future,
    _barrier,
    _barrier_async,
    _broadcast_and_reduce,
    _gathered,
    _scattered,
    _messages,
    _coalesced,
    _functional,
    _questions,
    _legacy,
    _in_shared_memory,
)


def _collectives(rank: int, world_size: int) -> list[str]:
    wrong = []
    with smddp():
        for function in _COMPILED:
            torch._dynamo.reset()
            x = torch.arange(8.0) + 100 * rank
            expected = function(x.clone())
            compiled = torch.compile(function, backend=BACKEND)
            if not all(torch.equal(compiled(x.clone()), expected) for _ in range(2)):
                wrong.append(function.__name__)
    return wrong


def test_collectives_in_compiled_functions_give_what_they_give_elsewhere() -> None:
    assert run_ranks(_collectives, 2, deadline_s=120) == [[], []]


def _default_compiler(rank: int, world_size: int) -> float:
    """The largest difference after two steps, and of one functional collective."""
    with smddp():
        results = []
        for is_compiled in (False, True):
            torch.manual_seed(3)
            ddp: Any = DistributedDataParallel(nn.Linear(8, 8))
            model = torch.compile(ddp) if is_compiled else ddp
            for step in range(2):
                model(torch.ones(2, 8) * (rank + step)).pow(2).mean().backward()
            gradient = ddp.module.weight.grad.clone()
            results.append(torch.cat([gradient, _compile_if(is_compiled, _all_reduce)(gradient)]))
        return float((results[0] - results[1]).abs().max())


def _compile_if(is_compiled: bool, function: Call) -> Call:
    return torch.compile(function) if is_compiled else function


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler for CPUs needs g++")
def test_the_default_compiler_works_over_smddp(tmp_path: Any) -> None:
    # It compiles all of torch's headers first, which takes a minute.
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    differences = run_ranks(_default_compiler, 2, deadline_s=180, env=environ)
    assert max(differences) < 1e-5


def test_the_import_of_the_backend_does_not_import_the_compiler() -> None:
    text = (
        "import sys, smdistributed.dataparallel.torch.torch_smddp;"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
