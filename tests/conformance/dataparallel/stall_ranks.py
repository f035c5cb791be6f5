# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks do when one of them has less to do; `test_stalls.py` beside this judges it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from machine_speed import scaled
from torch import nn
from torch_ranks import raised

TIMEOUT = timedelta(seconds=scaled(60.0))


def stalled(
    rank: int, world_size: int, kind: str, *, variable: str, argument_s: float | None = None
) -> tuple[str, str, list[str]] | None:
    """Rank 1 stays out of the second collective of `kind`; returns what rank 0 is told.

    Args:
        kind: "all_reduce" or "broadcast".
        variable: `SMDDP_TIMEOUT_SECONDS`. Set here, before anything of the library is loaded: the
            settings are read once per process.
        argument_s: `timeout` of `init_process_group` in seconds; None leaves it out.
    """
    os.environ["SMDDP_TIMEOUT_SECONDS"] = variable
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    if argument_s is None:
        dist.init_process_group("smddp")
    else:
        dist.init_process_group("smddp", timeout=timedelta(seconds=argument_s))
    store = dist.distributed_c10d._get_default_store()

    def collective() -> None:
        if kind == "all_reduce":
            dist.all_reduce(torch.ones(8))
        else:
            dist.broadcast(torch.ones(8), src=1)

    collective()
    heard = None
    if rank == 0:
        heard = raised(collective)
        store.set("told", "")
    else:
        store.wait(["told"], TIMEOUT)  # alive, and in no collective
    dist.destroy_process_group()
    return heard


def timeouts(rank: int, world_size: int) -> dict[str, list[float]]:
    """Timeouts of groups in seconds: made with torch's 30 minutes by name, and without a timeout.

    The variable says 60 seconds.
    """
    os.environ["SMDDP_TIMEOUT_SECONDS"] = "60"
    import smdistributed.dataparallel.torch.distributed as legacy

    def seconds(make: Callable[..., Any]) -> list[float]:
        found = []
        for options in ({"timeout": timedelta(minutes=30)}, {}):
            group = make(**options) or dist.distributed_c10d._get_default_group()
            found.append(group._timeout.total_seconds())
        return found

    def remade(make: Callable[..., Any]) -> Callable[..., None]:
        def make_default(**options: Any) -> None:
            if dist.is_initialized():
                dist.destroy_process_group()
            make(**options)

        return make_default

    backends = ("smddp", "SMDDP", "cuda:nccl,cpu:smddp")
    found = {
        backend: seconds(remade(functools.partial(dist.init_process_group, backend)))
        for backend in backends
    }
    found["new_group"] = seconds(dist.new_group)
    found["legacy"] = seconds(remade(legacy.init_process_group))
    dist.destroy_process_group()
    return found


def gloo_timeout(rank: int, world_size: int) -> float:
    """The timeout in seconds of a group without `smddp`, whose script names none."""
    os.environ["SMDDP_TIMEOUT_SECONDS"] = "60"
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- wraps torch's default

    dist.init_process_group("gloo")
    group: Any = dist.distributed_c10d._get_default_group()
    found = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    dist.destroy_process_group()
    return float(found)


def waits_for_a_rank_that_never_starts(rank: int, world_size: int) -> Any:
    """What `init_process_group` raises; the variable is all that limits its waiting."""
    os.environ["SMDDP_TIMEOUT_SECONDS"] = "2"
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    return raised(dist.init_process_group, "smddp")


def joined_training(rank: int, world_size: int, batches: tuple[int, ...]) -> dict[str, Any]:
    """Train torch's DDP on `batches[rank]` batches within `Join`.

    Returns:
        The number of steps of this rank, and the weights before and after as bytes.
    """
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    dist.init_process_group("smddp", timeout=TIMEOUT)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    found: dict[str, Any] = {"initial weights": _weights(model), "steps": 0}
    generator = torch.Generator().manual_seed(1 + rank)
    with Join([ddp]):
        for _ in range(batches[rank]):
            optimizer.zero_grad()
            ddp(torch.randn(4, 6, generator=generator)).square().mean().backward()
            optimizer.step()
            found["steps"] += 1
    found["weights"] = _weights(model)
    dist.destroy_process_group()
    return found


def _weights(model: nn.Module) -> bytes:
    parts = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    return b"".join(parts)
