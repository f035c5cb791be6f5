# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What torch builds on a process group: FSDP2, ZeRO, DTensor, checkpoints, averaging, sync norms.

Each is compared with one process on the joined batch. Tolerance: 1e-5 absolute and relative, for
float32 sums in another order over a few optimizer steps.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import nn
from torch_ranks import smddp, tagged

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def _model() -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(10, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 5)
    )


def _inputs(world_size: int) -> torch.Tensor:
    return torch.randn(world_size * 4, 10, generator=torch.Generator().manual_seed(5))


def _train(model: nn.Module, x: torch.Tensor, optimizer: Any, steps: int = 4) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def _alone(world_size: int) -> dict[str, torch.Tensor]:
    model = _model()
    _train(model, _inputs(world_size), torch.optim.Adam(model.parameters(), lr=0.01))
    return {name: p.detach() for name, p in model.named_parameters()}


def _full(parameter: Any) -> torch.Tensor:
    """The whole of a sharded parameter."""
    whole: torch.Tensor = parameter.full_tensor()
    return whole


def fully_sharded(rank: int, world_size: int, shape: tuple[int, ...]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with smddp():
        names = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = _model()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = _inputs(world_size)[4 * rank : 4 * rank + 4]
        _train(model, x, torch.optim.Adam(model.parameters(), lr=0.01))
        expected = _alone(world_size)
        for name, parameter in model.named_parameters():
            full = _full(parameter)
            torch.testing.assert_close(full, expected[name], **TOLERANCE)


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2)])
def test_fsdp2_equals_one_process(shape: tuple[int, ...]) -> None:
    ranks = 1
    for size in shape:
        ranks *= size
    run_ranks(fully_sharded, ranks, shape, deadline_s=60)


def fsdp_mixed_precision(rank: int, world_size: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with smddp():
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = fully_shard(_model(), mp_policy=policy)
        x = _inputs(world_size)[4 * rank : 4 * rank + 4]
        _train(model, x, torch.optim.SGD(model.parameters(), lr=0.01), steps=1)
        alone = _model()
        _train(alone, _inputs(world_size), torch.optim.SGD(alone.parameters(), lr=0.01), steps=1)
        expected = dict(alone.named_parameters())
        for name, parameter in model.named_parameters():
            full = _full(parameter)
            # One step of 0.01 x a gradient with bfloat16's 8 bits.
            torch.testing.assert_close(full, expected[name].detach(), rtol=0, atol=1e-3)


def test_fsdp2_mixed_precision() -> None:
    run_ranks(fsdp_mixed_precision, 2, deadline_s=120)


def zero_redundancy(rank: int, world_size: int, overlap: bool) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    with smddp():
        model = DistributedDataParallel(_model(), gradient_as_bucket_view=True)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, parameters_as_bucket_view=overlap, lr=0.01
        )
        _train(model, _inputs(world_size)[4 * rank : 4 * rank + 4], optimizer)
        for name, expected in _alone(world_size).items():
            torch.testing.assert_close(
                model.module.get_parameter(name).detach(), expected, **TOLERANCE
            )
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


@pytest.mark.parametrize("views", [False, True])
def test_zero_redundancy_optimizer(views: bool) -> None:
    run_ranks(zero_redundancy, 2, views, deadline_s=120)


def tensors_over_a_mesh(rank: int, world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    with smddp():
        mesh = init_device_mesh("cpu", (2, 2))
        full = torch.arange(64.0).view(8, 8)
        sharded = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
        assert sharded.to_local().shape == (4, 4)
        product = sharded @ sharded
        torch.testing.assert_close(product.full_tensor(), full @ full)
        turned = sharded.redistribute(mesh, [Shard(1), Replicate()])
        assert torch.equal(turned.full_tensor(), full)
        uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0), Replicate()])
        assert torch.equal(uneven.full_tensor(), torch.arange(7.0))


def test_dtensor_over_a_two_by_two_mesh() -> None:
    run_ranks(tensors_over_a_mesh, 4, deadline_s=120)


def tensor_parallel(rank: int, world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with smddp():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
        x = torch.randn(3, 6)
        expected = model(x).detach()
        mesh = init_device_mesh("cpu", (world_size,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.testing.assert_close(model(x).detach(), expected, **TOLERANCE)


def test_tensor_parallel_layers() -> None:
    run_ranks(tensor_parallel, 2, deadline_s=120)


def checkpoints(rank: int, world_size: int, folder: str, asynchronous: bool) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    # Asynchronous saving coordinates on another thread, over a group of the CPU.
    backend = "cpu:smddp,cuda:nccl" if asynchronous else "smddp"
    with smddp(backend):
        model = fully_shard(_model())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        _train(model, _inputs(world_size)[4 * rank : 4 * rank + 4], optimizer)
        weights, states = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": states, "step": 4}
        if asynchronous:
            dcp.async_save(saved, checkpoint_id=folder).result()  # type: ignore[union-attr]
        else:
            dcp.save(saved, checkpoint_id=folder)
        expected = {name: _full(parameter) for name, parameter in model.named_parameters()}

        other = fully_shard(_model())
        other_optimizer = torch.optim.Adam(other.parameters(), lr=0.5)
        other_weights, other_states = get_state_dict(other, other_optimizer)
        loaded = {"model": other_weights, "optimizer": other_states, "step": 0}
        dcp.load(loaded, checkpoint_id=folder)
        set_state_dict(
            other,
            other_optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )
        assert loaded["step"] == 4
        for name, parameter in other.named_parameters():
            assert torch.equal(_full(parameter), expected[name])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_distributed_checkpoints(tmp_path: Any, asynchronous: bool) -> None:
    run_ranks(checkpoints, 2, str(tmp_path / "checkpoint"), asynchronous, deadline_s=120)


def sync_batch_norm_like_statistics(rank: int, world_size: int) -> None:
    """Autograd through collectives, as torch.distributed.nn offers it."""
    import torch.distributed.nn.functional as differentiable

    with smddp(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = tagged(rank, 4).requires_grad_()
        total = differentiable.all_reduce(x * (rank + 1))
        (total * (rank + 1)).sum().backward()
        weight = sum(r + 1 for r in range(world_size))
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((4,), float(weight * (rank + 1))))
        y = tagged(rank, 4).requires_grad_()
        gathered = differentiable.all_gather(y)
        sum((r + 1) * part for r, part in enumerate(gathered)).sum().backward()
        assert y.grad is not None
        assert torch.equal(y.grad, torch.full((4,), float(world_size * (rank + 1))))


def test_collectives_with_gradients() -> None:
    run_ranks(sync_batch_norm_like_statistics, 2)


def compiled(rank: int, world_size: int) -> None:
    import torch.distributed._functional_collectives as functional

    with smddp():

        def step(x: torch.Tensor) -> torch.Tensor:
            return functional.all_reduce(x * 2, "sum", [0, 1]) + 1

        result = torch.compile(step, backend="aot_eager", fullgraph=True)(tagged(rank, 5))
        assert torch.equal(result + 0, 2 * (tagged(0, 5) + tagged(1, 5)) + 1)


def test_functional_collectives_in_a_compiled_function() -> None:
    run_ranks(compiled, 2, deadline_s=180)
