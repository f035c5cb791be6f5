# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks find that call the functions of the legacy modules; `test_legacy_api.py` judges it."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Any

import torch
from torch_ranks import raised

TIMEOUT = timedelta(seconds=60)


def process_functions(rank: int, world_size: int) -> dict[str, Any]:
    """Sections 5 and 5.1, all calls of one job."""
    import torch.distributed as native

    import smdistributed.dataparallel.torch as package
    import smdistributed.dataparallel.torch.distributed as dist

    found: dict[str, Any] = {"available before init": dist.is_available()}
    found["initialized before init"] = dist.is_initialized()
    # What the original ignored, in any order and number.
    dist.init_process_group("nccl", timeout=TIMEOUT, group_name="ignored", anything=1)
    found["initialized"] = dist.is_initialized()
    found["backend"] = native.get_backend()
    group = native.distributed_c10d._get_default_group()
    found["timeout"] = group._timeout.total_seconds()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group()
    found["second init"] = [(w.category.__name__, str(w.message)) for w in caught]
    found["same group"] = native.distributed_c10d._get_default_group() is group

    found["sizes"] = [
        dist.get_world_size(),
        dist.get_world_size(dist.group.WORLD),
        dist.get_world_size(None),
        dist.get_world_size(native.group.WORLD),
        native.get_world_size(),
        package.get_world_size(),
    ]
    found["ranks"] = [dist.get_rank(), native.get_rank(), package.get_rank()]
    found["local ranks"] = [dist.get_local_rank(), package.get_local_rank()]
    pair = native.new_group([0, 1])
    found["rank in a torch group"] = dist.get_rank(pair)
    found["wrong group"] = raised(dist.get_rank, "world")
    found["wrong group in all_reduce"] = raised(dist.all_reduce, torch.ones(1), group=0)

    found |= _reductions(dist, rank, world_size, pair)
    found |= _movements(dist, rank, world_size, pair)
    dist.destroy_process_group(dist.group.WORLD)
    found["initialized after destroy"] = dist.is_initialized()
    dist.destroy_process_group()
    found["after destroy"] = raised(dist.get_rank)[0]
    return found


def _reductions(dist: Any, rank: int, world_size: int, pair: Any) -> dict[str, Any]:
    import torch.distributed as native

    found: dict[str, Any] = {}
    ops = {
        "default": {},
        "None": {"op": None},
        "SUM": {"op": dist.ReduceOp.SUM},
        "AVERAGE": {"op": dist.ReduceOp.AVERAGE},
        "MIN": {"op": dist.ReduceOp.MIN},
        "MAX": {"op": dist.ReduceOp.MAX},
        "torch's": {"op": native.ReduceOp.SUM},
    }
    for name, options in ops.items():
        tensor = torch.tensor([rank + 1.0, 10.0 * rank])
        result = dist.all_reduce(tensor, **options)
        found[f"all_reduce {name}"] = (result, tensor.tolist())
    tensor = torch.tensor([rank, 3], dtype=torch.int64)
    dist.all_reduce(tensor)
    found["all_reduce of integers"] = tensor.tolist()
    for dtype in (torch.int64, torch.uint8, torch.bool):
        found[f"AVERAGE of {dtype}"] = raised(
            dist.all_reduce, torch.ones(2, dtype=dtype), dist.ReduceOp.AVERAGE
        )
    found["unknown op"] = raised(dist.all_reduce, torch.ones(2), "sum")
    half = torch.full((3,), 60000.0, dtype=torch.float16)
    dist.all_reduce(half, dist.ReduceOp.AVERAGE)
    found["fp16 average"] = half.tolist()
    with_nan = torch.full((2,), float("nan") if rank == 0 else 1.0)
    dist.all_reduce(with_nan, dist.ReduceOp.AVERAGE)
    found["nan"] = bool(with_nan.isnan().all())
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    found["async all_reduce"] = tensor.tolist()
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=pair)
    found["all_reduce in a torch group"] = tensor.tolist()
    return found


def _movements(dist: Any, rank: int, world_size: int, pair: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tensor = torch.full((5,), float(rank))  # 5 elements, whatever the world size
    found["broadcast result"] = dist.broadcast(tensor)
    found["broadcast"] = tensor.tolist()
    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, src=1, async_op=True).wait()
    found["broadcast from 1"] = tensor.tolist()
    outputs = [torch.empty(2) for _ in range(world_size)]
    found["all_gather result"] = dist.all_gather(outputs, torch.full((2,), float(rank)))
    found["all_gather"] = [output.tolist() for output in outputs]
    dist.all_gather(outputs, torch.full((2,), -float(rank)), async_op=True).wait()
    found["async all_gather"] = [output.tolist() for output in outputs]

    shares = torch.tensor([10.0 * rank + peer for peer in range(world_size)])
    spellings: dict[str, tuple[tuple[str, str], ...]] = {
        "documented": (("output_t", "input_t"),),
        "torch's": (("output", "input"),),
        "mixed": (("output_t", "input"),),
    }
    for name, ((output_name, input_name),) in spellings.items():
        output = torch.empty(world_size)
        dist.all_to_all_single(**{output_name: output, input_name: shares})
        found[f"all_to_all_single {name}"] = output.tolist()
    output = torch.empty(world_size)
    dist.all_to_all_single(output, shares, None, None, dist.group.WORLD, True).wait()
    found["all_to_all_single async"] = output.tolist()
    rows = torch.arange(3.0) + 100 * rank  # rank 0 sends (1, 2) rows, rank 1 (2, 1)
    sends, receives = ([1, 2], [1, 2]) if rank == 0 else ([2, 1], [2, 1])
    output = torch.empty(3)
    dist.all_to_all_single(output, rows, receives, sends)
    found["all_to_all_single uneven"] = output.tolist()
    found["both spellings"] = raised(
        dist.all_to_all_single, output_t=output, output=output, input_t=rows
    )
    found["barrier"] = [dist.barrier(), dist.barrier(pair)]
    dist.barrier(async_op=True).wait()
    return found


def explicit_place(rank: int, world_size: int) -> list[Any]:
    """`rank`, `world_size`, `store`, `init_method`: no variables, places swapped."""
    import torch.distributed as native

    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    import smdistributed.dataparallel.torch.distributed as dist

    place = world_size - 1 - rank
    store = native.TCPStore(*address, world_size, rank == 0, timeout=TIMEOUT)
    dist.init_process_group("gloo", rank=place, world_size=world_size, store=store)
    found = [dist.get_rank(), dist.get_world_size(), native.get_backend()]
    dist.barrier()
    dist.destroy_process_group()
    return found


def positional_place(rank: int, world_size: int) -> list[Any]:
    """The same by position, with an address; and as one process of a job of its own."""
    import torch.distributed as native

    url = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    import smdistributed.dataparallel.torch.distributed as dist

    dist.init_process_group(None, url, TIMEOUT, world_size, rank)
    found = [dist.get_rank(), dist.get_world_size(), native.get_backend()]
    dist.barrier()
    dist.destroy_process_group()

    found.append(dist.is_available())
    dist.init_process_group()
    found += [dist.get_rank(), dist.get_world_size(), dist.get_local_rank(), native.get_backend()]
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    found.append(tensor.tolist())
    dist.destroy_process_group()
    return found


def adopts(rank: int, world_size: int, backend: str) -> tuple[str, list[str], list[float]]:
    """The default group is torch's own; the legacy functions then use it."""
    import torch.distributed as native

    import smdistributed.dataparallel.torch.distributed as dist

    native.init_process_group(backend, timeout=TIMEOUT)
    before = native.distributed_c10d._get_default_group()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group()
    assert native.distributed_c10d._get_default_group() is before
    tensor = torch.ones(1) * rank
    dist.all_reduce(tensor)
    native.all_reduce(tensor)
    used = native.get_backend()
    native.destroy_process_group()
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    return used, told, tensor.tolist()
