# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors through `smddp` on a real GPU: `pytest -m gpu`. One GPU is enough for most.

The functions of the CPU tests run here with the GPU as torch's default device: what they say of
CPU tensors must hold for CUDA tensors. Two paths: `staged` with all ranks on GPU 0, and `nccl` with
a GPU for each rank.
"""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import raised, smddp, tagged

_GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_GPUS == 0, reason="torch sees no CUDA device on this machine"),
]

needs_nccl = pytest.mark.skipif(
    _GPUS < 2 or not dist.is_nccl_available(),
    reason=f"needs NCCL and two CUDA devices; torch sees {_GPUS} of them",
)

STAGED = {"SMDDP_TRANSPORT": "staged"}
COLLECTIVES = [
    "all_reduce_sums",
    "all_reduce_operations",
    "list_collectives",
    "uneven_shares",
    "reductions_to_one",
    "coalesced_forms",
    "functional_collectives",
    "dense_but_not_contiguous",
    "sparse_sum",
    "short_forms",
    "objects",
]
MESSAGES = ["ring", "tags", "same_tag_in_order", "any_source", "batches", "beside_collectives"]


def _use(device: int) -> None:
    torch.cuda.set_device(device)
    torch.set_default_device("cuda")


def on_gpu(rank: int, world_size: int, gpus: int, module: str, function: str, *args: Any) -> Any:
    """Run a test function of CPU tensors with tensors on `gpus` devices."""
    _use(rank % gpus)
    return getattr(importlib.import_module(module), function)(rank, world_size, *args)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("function", COLLECTIVES)
def test_collectives_of_ranks_on_one_gpu(function: str, world_size: int) -> None:
    run_ranks(on_gpu, world_size, 1, "test_torch_collectives", function, deadline_s=110, env=STAGED)


@pytest.mark.parametrize("function", MESSAGES)
def test_messages_of_ranks_on_one_gpu(function: str) -> None:
    run_ranks(on_gpu, 2, 1, "test_torch_point_to_point", function, deadline_s=110, env=STAGED)


@needs_nccl
@pytest.mark.parametrize("function", ["all_reduce_sums", "list_collectives", "coalesced_forms"])
def test_collectives_through_nccl(function: str) -> None:
    run_ranks(nccl_dtypes, 2, function, deadline_s=110, env={"SMDDP_TRANSPORT": "nccl"})


def nccl_dtypes(rank: int, world_size: int, function: str) -> None:
    """NCCL has no 16-bit integers and no 8-bit floats under these names."""
    tests = importlib.import_module("test_torch_collectives")
    tests.REDUCIBLE = [t for t in tests.REDUCIBLE if t != torch.int16]  # type: ignore[attr-defined]
    tests.MOVED_ONLY = []  # type: ignore[attr-defined]
    on_gpu(rank, world_size, 2, "test_torch_collectives", function)


def chosen(rank: int, world_size: int, gpus: int) -> str:
    _use(rank % gpus)
    with smddp():
        group: Any = dist.group.WORLD
        assert torch.device("cuda") in group._device_types
        assert group._get_backend(torch.device("cuda", 0)) is group
        dist.barrier(device_ids=[rank % gpus])
        return type(group._handlers["cuda"]).__name__


def test_ranks_that_share_a_gpu_are_staged() -> None:
    assert run_ranks(chosen, 2, 1) == ["StagedCollectives"] * 2


@needs_nccl
def test_ranks_with_a_gpu_each_use_nccl() -> None:
    assert run_ranks(chosen, 2, 2) == ["ProcessGroup"] * 2


def bits(rank: int, world_size: int) -> None:
    _use(0)
    with smddp():
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            for count in (0, 1, 1021, (3 << 20) + 1):  # the last one needs several pieces
                generator = torch.Generator(device="cuda").manual_seed(100 * rank + count)
                mine = torch.randn(count, generator=generator, device="cuda").to(dtype)
                on_cpu = mine.cpu()
                dist.all_reduce(mine)
                dist.all_reduce(on_cpu)
                assert torch.equal(mine.cpu().view(torch.uint8), on_cpu.view(torch.uint8))


def test_the_same_bits_as_on_the_cpu() -> None:
    run_ranks(bits, 3, deadline_s=110, env=STAGED)


def streams(rank: int, world_size: int) -> None:
    """The operation must start after slow kernels before it, and its users after it."""
    _use(0)
    count = 10_000_000
    expected = torch.stack([tagged(r, 1000) for r in range(world_size)]).sum(0)
    with smddp():
        for side in (None, torch.cuda.Stream()):
            with torch.cuda.stream(side):
                tensor = torch.zeros(count)
                torch.cuda._sleep(200_000_000)  # about 0.1 s
                tensor[:1000] = tagged(rank, 1000)
                work = dist.all_reduce(tensor, async_op=True)
                assert work is not None
                work.wait()
                result = tensor.clone()
                del tensor  # its memory may be used again at once
                torch.full((count,), float("nan"))
                assert torch.equal(result[:1000], expected)
                assert not result[1000:].any()
                future = dist.all_reduce(result, async_op=True).get_future()
                doubled = future.then(lambda f: f.value()[0] * 2).wait()
                assert torch.equal(doubled[:1000], expected * (2 * world_size))
        receiving = torch.zeros(count)
        sending = torch.zeros(count)
        torch.cuda._sleep(200_000_000)
        sending += rank + 1
        works = [dist.isend(sending, 1 - rank), dist.irecv(receiving, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()
        sending.zero_()
        assert torch.equal(receiving, torch.full((count,), 2.0 - rank))


def test_streams_are_respected() -> None:
    run_ranks(streams, 2, deadline_s=110, env=STAGED)


def _train(rank: int, group: Any, amp: torch.dtype | None) -> list[Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 8))
    ddp = DistributedDataParallel(model.cuda(), device_ids=[0], process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
    torch.manual_seed(10 + rank)
    for _ in range(5):
        x, y = torch.randn(16, 64), torch.randn(16, 8)
        with torch.autocast("cuda", dtype=amp or torch.float16, enabled=amp is not None):
            loss = nn.functional.mse_loss(ddp(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def ddp_beside_gloo(rank: int, world_size: int, amp: torch.dtype | None) -> None:
    _use(0)
    with smddp():
        gloo = dist.new_group(backend="gloo")
        ours = _train(rank, None, amp)
        theirs = _train(rank, gloo, amp)
        for mine, reference in zip(ours, theirs, strict=True):
            others = [torch.empty_like(mine) for _ in range(world_size)]
            dist.all_gather(others, mine)
            assert all(torch.equal(other, mine) for other in others), "bits differ between ranks"
            # Two ranks: a sum of two has one order, so Gloo's bits are ours in float32.
            torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("amp", [None, torch.float16, torch.bfloat16])
def test_ddp_equals_gloo_on_the_same_tensors(amp: torch.dtype | None) -> None:
    run_ranks(ddp_beside_gloo, 2, amp, deadline_s=110, env=STAGED)


def half_gradients(rank: int, world_size: int, dtype: torch.dtype) -> None:
    """16-bit gradients are reduced as such, and infinities reach every rank.

    Source: dataparallel specification, section 6.3.
    """
    _use(0)
    with smddp():
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Linear(33, 65, dtype=dtype, device="cuda"))
        ddp(torch.full((4, 33), float(rank + 1), dtype=dtype, device="cuda")).sum().backward()
        weight = ddp.module.weight.grad
        assert weight.dtype == dtype
        assert torch.equal(weight, torch.full_like(weight, 6.0))  # (4 + 8) / 2
        gradient = torch.ones(1000, dtype=dtype, device="cuda")
        if rank == 1:
            gradient[7] = float("inf")
        dist.all_reduce(gradient)
        assert gradient.isinf().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_gradients(dtype: torch.dtype) -> None:
    run_ranks(half_gradients, 2, dtype, deadline_s=110, env=STAGED)


def destroyed(rank: int, world_size: int) -> list[str]:
    import threading

    _use(0)
    for generation in range(3):
        store = dist.FileStore(f"{os.environ['STORE']}-{generation}", world_size)
        with smddp(store=store, rank=rank, world_size=world_size):
            tensor = torch.ones(5_000_000, device="cuda")
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full_like(tensor, float(world_size)))
    return [thread.name for thread in threading.enumerate() if "smddp-staged" in thread.name]


def test_destroy_and_init_again_leaves_no_thread(tmp_path: Any) -> None:
    env = {**STAGED, "STORE": str(tmp_path / "store")}
    assert run_ranks(destroyed, 2, deadline_s=110, env=env) == [[], []]


def _rows(step: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(step)
    x, y = (
        torch.randn(count, n, generator=generator, dtype=torch.float64, device="cuda")
        for n in (33, 5)
    )
    return x, y


def _descend(model: Any, parameters: list[Tensor], share: slice, step: int, rows: int) -> None:
    x, y = _rows(step, rows)
    nn.functional.mse_loss(model(x[share]), y[share]).backward()
    with torch.no_grad():
        for parameter in parameters:
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def trains_as_one_process(rank: int, world_size: int, is_legacy: bool) -> None:
    _use(0)
    torch.manual_seed(5)
    whole = nn.Sequential(nn.Linear(33, 257), nn.Tanh(), nn.Linear(257, 5)).double()
    torch.manual_seed(5 + rank)  # ranks other than 0 are given its weights
    module = nn.Sequential(nn.Linear(33, 257), nn.Tanh(), nn.Linear(257, 5)).double()
    with smddp():
        if is_legacy:
            from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Ours

            ddp: nn.Module = Ours(module, bucket_cap_mb=1 / 64)
        else:
            ddp = DistributedDataParallel(module, device_ids=[0], bucket_cap_mb=1 / 64)
        for step in range(20):
            share = slice(4 * rank, 4 * (rank + 1))
            rows = 4 * world_size
            _descend(ddp, list(module.parameters()), share, step, rows)
            _descend(whole, list(whole.parameters()), slice(None), step, rows)
        for mine, expected in zip(module.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("is_legacy", [False, True], ids=["torch's DDP", "the legacy DDP"])
def test_twenty_steps_equal_one_process(is_legacy: bool, world_size: int) -> None:
    run_ranks(trains_as_one_process, world_size, is_legacy, deadline_s=110, env=STAGED)


def synchronised_batch_norm(rank: int, world_size: int, is_horovod: bool) -> None:
    _use(0)
    if is_horovod:
        import smdistributed.compat.horovod.torch as hvd

        hvd.init()
        ours: nn.Module = hvd.SyncBatchNorm(6)
        _normalises_all(rank, world_size, ours)
        hvd.shutdown()
    else:
        with smddp():
            _normalises_all(rank, world_size, nn.SyncBatchNorm(6))


def _normalises_all(rank: int, world_size: int, ours: nn.Module) -> None:
    whole = nn.BatchNorm1d(6)
    x = torch.randn(4 * world_size, 6, generator=torch.Generator("cuda").manual_seed(1))
    weights = torch.linspace(0.5, 1.5, x.numel()).view_as(x)
    mine, all_rows = x[4 * rank :][:4].clone().requires_grad_(), x.clone().requires_grad_()
    (ours(mine) * weights[4 * rank :][:4]).pow(2).sum().backward()
    (whole(all_rows) * weights).pow(2).sum().backward()
    torch.testing.assert_close(mine.grad, all_rows.grad[4 * rank :][:4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var, whole.running_var, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_horovod", [False, True], ids=["torch's", "Horovod's"])
def test_batch_norm_over_all_ranks(is_horovod: bool) -> None:
    run_ranks(synchronised_batch_norm, 2, is_horovod, deadline_s=110, env=STAGED)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("function", ["reductions", "exchanges", "gradients_of_collectives"])
def test_horovods_calls(function: str, world_size: int) -> None:
    module = "tests.multiprocess.compat.horovod_ranks"
    run_ranks(on_gpu, world_size, 1, module, function, deadline_s=110, env=STAGED)


def killed(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    _use(0)
    with smddp():
        tensor = torch.ones(25_000_000)
        dist.all_reduce(tensor)
        if rank == 1:
            dist.all_reduce(tensor, async_op=True)
            os.kill(os.getpid(), signal.SIGKILL)
        found = raised(_until_it_fails, tensor)
        assert torch.ones(3).sum().item() == 3  # the GPU still works here
        return found


def _until_it_fails(tensor: Tensor) -> None:
    for _ in range(1000):
        dist.all_reduce(tensor)


def test_a_killed_rank_is_an_error_on_the_others() -> None:
    outcomes = run_ranks(killed, 3, deadline_s=60, env=STAGED, check=False)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, outcome
        name, text, bases = outcome.value
        assert "SMDDPError" in bases, (name, text)
        assert "rank 1" in text


def out_of_memory(rank: int, world_size: int, goes_on: bool) -> tuple[str, str, list[str]] | None:
    _use(0)
    with smddp():
        tensor = torch.ones(1_000_003)
        dist.all_reduce(tensor)
        if rank == 1:
            try:
                torch.empty(1 << 44)
            except torch.OutOfMemoryError:
                if not goes_on:
                    raise
        if goes_on:
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full_like(tensor, 4.0))
            return None
        return raised(dist.all_reduce, tensor)


def test_a_rank_that_runs_out_of_memory_may_go_on() -> None:
    run_ranks(out_of_memory, 2, True, deadline_s=60, env=STAGED)


def test_a_rank_that_ends_for_want_of_memory_is_an_error_on_the_other() -> None:
    outcomes = run_ranks(out_of_memory, 2, False, deadline_s=60, env=STAGED, check=False)
    assert outcomes[1].error is not None
    assert outcomes[1].error.type_name == "OutOfMemoryError"
    assert outcomes[0].ok, outcomes[0]
    assert "SMDDPError" in outcomes[0].value[2], outcomes[0].value
