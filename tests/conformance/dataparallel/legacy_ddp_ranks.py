# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks find that wrap a model in the legacy `DistributedDataParallel`.

`test_legacy_ddp.py` and `test_fusion_rules.py` judge it.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch_ranks import raised

TIMEOUT = timedelta(seconds=60)


class Layers(nn.Module):
    """Three layers of 2 x 2, and one that some tests leave unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.third = nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.third(self.second(self.first(x)))
        return result


def wrapper(rank: int, world_size: int) -> dict[str, Any]:
    """Section 5.2, what can be seen on one wrapped model."""
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    found: dict[str, Any] = {"before init": raised(Wrapper, Layers())}
    dist.init_process_group(timeout=TIMEOUT)
    torch.manual_seed(rank)
    module = Layers()
    module.register_buffer("count", torch.tensor([float(rank)]))
    own = [p.detach().clone() for p in module.parameters()]
    ddp = Wrapper(module)
    zeros = [torch.equal(a, b) for a, b in zip(own, module.parameters(), strict=True)]
    found["rank 0 kept its weights"] = all(zeros)
    found["buffer after wrapping"] = module.count.tolist()
    found["module"] = ddp.module is module
    found["keys"] = list(ddp.state_dict())
    found["torch's class"] = isinstance(ddp, nn.parallel.DistributedDataParallel)

    found["gradient"] = _mean_gradient(ddp, rank)
    for process_group in (None, dist.group.WORLD, torch.distributed.group.WORLD):
        Wrapper(Layers(), process_group=process_group)
    sub_group = torch.distributed.new_group([0, 1])
    found["in a sub-group"] = _mean_gradient(Wrapper(Layers(), process_group=sub_group), rank)
    found["wrong group"] = raised(Wrapper, Layers(), process_group="world")

    for name, value in (("True", True), ("False", False)):
        module = Layers()
        module.register_buffer("count", torch.zeros(1))
        ddp = Wrapper(module, None, None, value)  # the fourth position of the legacy signature
        module.count.fill_(float(rank))
        ddp(torch.ones(1, 2))
        found[f"buffer with broadcast_buffers={name}"] = module.count.tolist()

    for cap in (1, 25, 0.5, None, 1 / 8192):
        found[f"bucket_cap_mb={cap}"] = _mean_gradient(Wrapper(Layers(), bucket_cap_mb=cap), rank)
    refused_caps = {"0": 0, "-1": -1, "True": True, "1/3": 1 / 3, "nan": float("nan")}
    refused_caps["0.00005"] = 0.00005
    for name, cap in refused_caps.items():
        found[f"bucket_cap_mb {name}"] = raised(Wrapper, Layers(), bucket_cap_mb=cap)
    extras = (
        "gradient_as_bucket_view",
        "check_reduction",
        "static_graph",
        "find_unused_parameters",
    )
    for extra in extras:
        found[extra] = _mean_gradient(Wrapper(Layers(), **{extra: True}, dim=0), rank)
    found["device_ids=[]"] = _mean_gradient(Wrapper(Layers(), device_ids=[]), rank)

    found["moved"] = _moved_after_wrapping(Wrapper, rank)
    found["16-bit"] = _sixteen_bit(Wrapper, rank)
    found["bfloat16"] = _bfloat16(Wrapper, rank)
    found["nan reached"] = _nan_reaches(Wrapper, rank)
    found["unused everywhere"] = _unused_everywhere(Wrapper, rank)
    dist.destroy_process_group()
    return found


def _mean_gradient(ddp: Any, rank: int) -> list[float]:
    """A gradient that tells who took part: ones on rank 0, threes on rank 1, hence twos."""
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter.copy_(torch.eye(2))
    ddp(torch.full((1, 2), 1.0 + 2 * rank)).sum().backward()
    gradient = ddp.module.first.weight.grad.flatten().tolist()
    ddp.zero_grad()
    return gradient


def _moved_after_wrapping(wrapper_class: Any, rank: int) -> list[float]:
    """The published sample wraps, then moves the model to where it is."""
    ddp = wrapper_class(Layers())
    moved = ddp.to("cpu").float()
    assert moved is ddp
    return _mean_gradient(moved, rank)


def _sixteen_bit(wrapper_class: Any, rank: int) -> list[Any]:
    """60000 on all ranks averages to 60000; one rank's inf reaches all; nothing is upcast."""
    module = nn.Linear(2, 1, bias=False, dtype=torch.float16)
    ddp = wrapper_class(module)
    ddp(torch.full((1, 2), 60000.0, dtype=torch.float16)).sum().backward()
    average = module.weight.grad.tolist()
    dtype = str(ddp.reducer._buckets[0].buffer.dtype)
    ddp.zero_grad()
    ddp(torch.full((1, 2), 1.0, dtype=torch.float16)).sum().mul(1e5 if rank else 1.0).backward()
    return [average, dtype, bool(module.weight.grad.isinf().all())]


def _bfloat16(wrapper_class: Any, rank: int) -> list[Any]:
    """The average, the dtype of the gradient and that of the buffer that travels."""
    module = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    ddp = wrapper_class(module)
    ddp(torch.full((1, 2), 1.0 + 2 * rank, dtype=torch.bfloat16)).sum().backward()
    gradient = module.weight.grad
    return [gradient.tolist(), str(gradient.dtype), str(ddp.reducer._buckets[0].buffer.dtype)]


def _nan_reaches(wrapper_class: Any, rank: int) -> bool:
    """Rank 1 alone has a NaN in its batch."""
    module = nn.Linear(2, 1, bias=False)
    wrapper_class(module)(torch.full((1, 2), float("nan") if rank else 1.0)).sum().backward()
    return bool(module.weight.grad.isnan().all())


def _unused_everywhere(wrapper_class: Any, rank: int) -> list[Any]:
    """The gradients of a layer that no rank uses, and of one that all use."""
    module = Layers()
    module.spare = nn.Linear(2, 2, bias=False)
    ddp = wrapper_class(module, find_unused_parameters=True)
    gradient = _mean_gradient(ddp, rank)
    return [module.spare.weight.grad, gradient[0]]


def accumulation(rank: int, world_size: int) -> dict[str, Any]:
    """`no_sync` and `gradient_accumulation_steps`, gradient after each backward."""
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    def backward(ddp: Any) -> list[float]:
        with torch.no_grad():
            for parameter in ddp.parameters():
                parameter.copy_(torch.eye(2))
        ddp(torch.full((1, 2), 1.0 + 2 * rank)).sum().backward()
        return ddp.module.first.weight.grad.flatten().tolist()[:1]

    dist.init_process_group(timeout=TIMEOUT)
    found: dict[str, Any] = {}
    ddp = Wrapper(Layers())
    with ddp.no_sync():
        found["no_sync"] = backward(ddp) + backward(ddp)
    found["after no_sync"] = backward(ddp)
    ddp.zero_grad()
    with ddp.no_sync():
        loss = ddp(torch.full((1, 2), 1.0 + 2 * rank)).sum()
    loss.backward()
    found["forward in no_sync"] = ddp.module.first.weight.grad.flatten().tolist()[:1]
    ddp.zero_grad()
    loss = ddp(torch.full((1, 2), 1.0 + 2 * rank)).sum()
    with ddp.no_sync():
        loss.backward()
    found["backward in no_sync"] = ddp.module.first.weight.grad.flatten().tolist()[:1]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddp = Wrapper(Layers(), gradient_accumulation_steps=3)
    found["advice"] = [str(w.message) for w in caught if issubclass(w.category, DeprecationWarning)]
    found["every third"] = [backward(ddp)[0] for _ in range(3)]
    ddp.zero_grad()
    found["every third, again"] = [backward(ddp)[0] for _ in range(3)]
    found["every one"] = backward(Wrapper(Layers(), gradient_accumulation_steps=1))
    for steps in (0, -2, True, 1.5, "3"):
        found[f"steps {steps!r}"] = raised(Wrapper, Layers(), gradient_accumulation_steps=steps)
    dist.destroy_process_group()
    return found


def differing_models(rank: int, world_size: int) -> dict[str, Any]:
    """Models and arguments that differ on rank 1, one way at a time."""
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    def model(change: str) -> nn.Module:
        module = Layers()
        if rank != 1:
            return module
        if change == "count":
            module.fourth = nn.Linear(2, 2)
        elif change == "shape":
            module.second = nn.Linear(2, 3, bias=False)
        elif change == "dtype":
            module.second = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        elif change == "order":
            module.second = module._modules.pop("second")  # now behind the third
        elif change == "frozen":
            module.second.requires_grad_(False)
        elif change == "buffer":
            module.register_buffer("extra", torch.zeros(1))
        return module

    dist.init_process_group(timeout=TIMEOUT)
    found = {
        change: raised(Wrapper, model(change))
        for change in ("count", "shape", "dtype", "order", "frozen", "buffer")
    }
    options = {
        "bucket_cap_mb": 25 + rank,
        "broadcast_buffers": rank == 0,
        "find_unused_parameters": rank == 0,
        "gradient_accumulation_steps": 1 + rank,
        "static_graph": rank == 0,
    }
    for name, value in options.items():
        found[name] = raised(Wrapper, Layers(), **{name: value})
    found["none"] = ("", _mean_gradient(Wrapper(Layers()), rank), [])
    dist.destroy_process_group()
    return found


def stalls(rank: int, world_size: int) -> tuple[str, str, list[str]] | None:
    """Rank 1 has one batch, rank 0 two, nobody uses `Join`, the timeout is short."""
    import torch.distributed as native

    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    dist.init_process_group(timeout=TIMEOUT)
    store = native.distributed_c10d._get_default_store()
    ddp = Wrapper(Layers())
    # Not from the beginning: on a busy machine the ranks do not come so close together.
    dist.barrier()
    native.distributed_c10d._set_pg_timeout(timedelta(seconds=2))

    def train() -> None:
        for _ in range(2 - rank):
            ddp(torch.ones(1, 2)).sum().backward()
            ddp.zero_grad()

    heard = None
    if rank == 0:
        heard = raised(train)
        store.set("told", "")
    else:
        train()
        store.wait(["told"], TIMEOUT)  # alive, and in no collective
    dist.destroy_process_group()
    return heard


class Skips(Layers):
    """Rank 1 does not use the second layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if torch.distributed.get_rank() == 0:
            h = self.second(h)
        result: torch.Tensor = self.third(h)
        return result


def missing_gradient(rank: int, world_size: int, find_unused: bool) -> Any:
    """Section 6.5: the second layer's gradient, or the error."""
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    dist.init_process_group(timeout=TIMEOUT)
    ddp = Wrapper(Skips(), bucket_cap_mb=1 / 8192, find_unused_parameters=find_unused)
    if find_unused:
        _mean_gradient(ddp, rank)
        with torch.no_grad():
            for parameter in ddp.parameters():
                parameter.copy_(torch.eye(2))
        ddp(torch.ones(1, 2)).sum().backward()
        found: Any = ddp.module.second.weight.grad.flatten().tolist()
    else:
        found = raised(lambda: [_mean_gradient(ddp, rank) for _ in range(2)])
    dist.destroy_process_group()
    return found


def joins(rank: int, world_size: int) -> list[float]:
    """Section 6.6, the remedy: rank r has r + 1 batches. Returns the mean gradient of each."""
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    dist.init_process_group(timeout=TIMEOUT)
    ddp = Wrapper(Layers())
    with ddp.join():
        found = [_mean_gradient(ddp, rank)[0] for _ in range(rank + 1)]
    dist.destroy_process_group()
    return found


def bucket_order(rank: int, world_size: int) -> dict[str, Any]:
    """Section 6.1, what can be seen of the buckets of a wrapped model."""
    import smdistributed.dataparallel.torch.distributed as dist
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Wrapper

    dist.init_process_group(timeout=TIMEOUT)
    module = Layers()
    module.short = nn.Parameter(torch.ones(3, dtype=torch.float16))
    ddp = Wrapper(module, bucket_cap_mb=1 / 8192)  # 128 bytes: three layers are two buckets
    x = torch.ones(1, 2, requires_grad=True)
    launched: list[int] = []
    x.register_hook(lambda _: launched.append(len(ddp.reducer._works)))
    ((ddp(x).sum()) + module.short.sum().float()).backward()
    found = {
        "buckets": [[slot.name for slot in bucket.slots] for bucket in ddp.reducer._buckets],
        "dtypes": [str(bucket.buffer.dtype) for bucket in ddp.reducer._buckets],
        "views": all(
            slot.parameter.grad.untyped_storage().data_ptr()
            == bucket.buffer.untyped_storage().data_ptr()
            for bucket in ddp.reducer._buckets
            for slot in bucket.slots
        ),
        "launched while backward goes on": launched,
        "under way after backward": len(ddp.reducer._works),
        "default cap": Wrapper(Layers()).reducer._bucket_cap_bytes,
    }
    bits = []
    for cap in (1 / 8192, 1 / 4096, 25, 25):
        torch.manual_seed(rank)
        x = torch.randn(5, 2)
        torch.manual_seed(7)
        module = Layers()
        ddp = Wrapper(module, bucket_cap_mb=cap)
        ddp(x).pow(3).sum().backward()
        bits.append([p.grad.flatten().tolist() for p in module.parameters()])
    found["bits"] = bits
    dist.destroy_process_group()
    return found
