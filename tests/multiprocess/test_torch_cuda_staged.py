# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The path of CUDA tensors through host memory, on a device made of CPU memory.

No GPU is needed: `lazy_device.py` carries out copies as late as the rules of streams allow, so that
a missing wait shows as a wrong result. What a real device adds is in `test_torch_cuda_gpu.py`.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import RankOutcome, run_ranks
from lazy_device import CHUNK_BYTES, stage, staged_smddp
from machine_speed import scaled
from torch_ranks import raised, smddp, tagged


def staged(rank: int, world_size: int, module: str, function: str, *args: Any) -> Any:
    """Run a test function of CPU tensors with every tensor staged."""
    tests = importlib.import_module(module)
    tests.smddp = staged_smddp  # type: ignore[attr-defined]
    return getattr(tests, function)(rank, world_size, *args)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "function",
    [
        "all_reduce_sums",
        "list_collectives",
        "uneven_shares",
        "sparse_sum",
    ],
)
def test_collectives(world_size: int, function: str) -> None:
    run_ranks(staged, world_size, "test_torch_collectives", function, deadline_s=120)


@pytest.mark.parametrize(
    "function",
    [
        "all_reduce_operations",
        "half_average_near_overflow",
        "reductions_to_one",
        "coalesced_forms",
        "functional_collectives",
        "dense_but_not_contiguous",
        "short_forms",
        "objects",
    ],
)
def test_other_forms(function: str) -> None:
    run_ranks(staged, 2, "test_torch_collectives", function, deadline_s=120)


@pytest.mark.parametrize(
    ("function", "world_size"),
    [
        ("ring", 3),
        ("tags", 2),
        ("same_tag_in_order", 2),
        ("any_source", 3),
        ("batches", 3),
        ("beside_collectives", 2),
    ],
)
def test_messages(function: str, world_size: int) -> None:
    run_ranks(staged, world_size, "test_torch_point_to_point", function, deadline_s=120)


def test_bad_tensors_raise_before_anything_moves() -> None:
    run_ranks(staged, 2, "test_torch_errors", "bad_tensors")


@pytest.mark.parametrize("how", ["count", "dtype", "root", "operation", "async"])
def test_ranks_that_disagree_all_hear_of_it(how: str) -> None:
    outcomes = run_ranks(staged, 3, "test_torch_errors", "disagree", how, deadline_s=40)
    for name, text, bases in outcomes:
        assert name == "SMDDPMismatch", text
        assert "RuntimeError" in bases


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}])
def test_ddp_equals_one_process(options: dict[str, Any]) -> None:
    run_ranks(staged, 2, "test_torch_ddp", "equal_to_one_process", options, 1, False)


@pytest.mark.parametrize("name", ["fp16", "powerSGD"])
def test_ddp_comm_hooks_chain_to_futures(name: str) -> None:
    run_ranks(staged, 2, "test_torch_ddp", "comm_hook", name)


def bits(rank: int, world_size: int) -> None:
    """Staged and direct results must agree in every bit, whatever the pieces."""
    group_of: Any = None
    with smddp():
        direct = dist.new_group(list(range(world_size)))
        group_of = dist.group.WORLD
        for chunk_bytes in (256, 1000, 4096):
            stage(group_of, chunk_bytes)
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
                for count in (0, 1, 63, 64, 65, 257, 1021, 3 * 1024 + 1, 10007):
                    generator = torch.Generator().manual_seed(1000 * rank + count)
                    mine = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
                    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
                        expected, actual = mine.clone(), mine.clone()
                        dist.all_reduce(expected, op=op, group=direct)
                        dist.all_reduce(actual, op=op)
                        assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8)), (
                            chunk_bytes,
                            dtype,
                            count,
                            op,
                        )
                    share = mine[: count // world_size]
                    outputs = [torch.empty_like(share), torch.empty_like(share)]
                    for output, group in zip(outputs, (direct, None), strict=True):
                        whole = mine[: share.numel() * world_size].contiguous()
                        dist.reduce_scatter_single(output, whole, group=group)
                    assert torch.equal(outputs[0].view(torch.uint8), outputs[1].view(torch.uint8))
            group_of._handlers.pop("cpu").shutdown()


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_same_bits_as_on_the_cpu_whatever_the_chunks(world_size: int) -> None:
    run_ranks(bits, world_size, deadline_s=120)


def streams(rank: int, world_size: int) -> None:
    with staged_smddp():
        group: Any = dist.group.WORLD
        device = group.lazy_device
        count = 5 * CHUNK_BYTES  # twenty pieces
        tensor = torch.zeros(count)
        # The caller's kernel has not run when the operation is submitted: its data must be seen.
        device.kernel(lambda: tensor.copy_(tagged(rank, count)))
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        group._handlers["cpu"].drain()
        assert not work.is_completed(), "the copies back are queued, not done"
        work.wait()
        expected = torch.stack([tagged(r, count) for r in range(world_size)]).sum(0)
        assert torch.equal(tensor, expected)
        assert work.is_completed()
        assert work.is_success()
        # A kernel that reads the output before, and one that overwrites the input after.
        before = torch.empty(3)
        received = torch.full((3,), -1.0)
        device.kernel(lambda: before.copy_(received))
        peer = (rank + 1) % world_size
        sent = tagged(rank, 3)
        sending = dist.isend(sent, peer)
        receiving = dist.irecv(received, (rank - 1) % world_size)
        assert sending is not None
        assert receiving is not None
        receiving.wait()
        sending.wait()
        device.kernel(lambda: sent.zero_())
        device.synchronize()
        assert before.tolist() == [-1.0] * 3
        assert torch.equal(received, tagged((rank - 1) % world_size, 3))


@pytest.mark.parametrize("world_size", [2, 3])
def test_work_before_and_after_on_the_current_stream_is_ordered(world_size: int) -> None:
    run_ranks(streams, world_size)


def many_at_once(rank: int, world_size: int) -> None:
    with staged_smddp():
        tensors = [tagged(rank + i, 700 * i) for i in range(12)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works[::2]]
        for i, work in enumerate(works):
            work.wait()
            expected = torch.stack([tagged(r + i, 700 * i) for r in range(world_size)]).sum(0)
            assert torch.equal(tensors[i], expected)
        for future, tensor in zip(futures, tensors[::2], strict=True):
            assert future.wait()[0] is tensor
        large = [tagged(rank, 3 * CHUNK_BYTES) for _ in range(world_size)]  # does not fit a slot
        outputs = [torch.empty(3 * CHUNK_BYTES) for _ in range(world_size)]
        dist.all_to_all(outputs, large)
        for peer, output in enumerate(outputs):
            assert torch.equal(output, tagged(peer, 3 * CHUNK_BYTES))


def test_many_operations_in_flight() -> None:
    run_ranks(many_at_once, 3)


def memory(rank: int, world_size: int) -> tuple[list[int], int]:
    with staged_smddp():
        group: Any = dist.group.WORLD
        device = group.lazy_device
        for _ in range(5):
            dist.all_reduce(torch.ones(10 * CHUNK_BYTES))
        slots = [*device.pinned_bytes, *[CHUNK_BYTES] * len(device.registered)]
    assert not device.registered, "given back when the group was destroyed"
    return slots, _staging_threads()


def _staging_threads() -> int:
    return sum("smddp-staged" in thread.name for thread in threading.enumerate())


def test_three_slots_serve_all_operations_and_are_given_back() -> None:
    assert run_ranks(memory, 2) == [([CHUNK_BYTES] * 3, 0)] * 2


def aborted(rank: int, world_size: int) -> Any:
    with staged_smddp():
        group: Any = dist.group.WORLD
        store = dist.distributed_c10d._get_default_store()
        receiving = dist.irecv(torch.empty(4), src=1 - rank)
        reducing = dist.all_reduce(torch.ones(9), async_op=True) if rank else None
        assert receiving is not None
        if rank == 0:
            store.wait(["waiting"])
            group.abort()
        else:
            store.set("waiting", b"")
        errors = [raised(receiving.wait)]
        if reducing is not None:
            errors.append(raised(reducing.wait))
            errors.append(raised(reducing.get_future().wait))
            group.abort()  # this rank's memory and threads, too
        errors.append(raised(dist.all_reduce, torch.ones(2)))
        return errors, _staging_threads(), len(group.lazy_device.registered)


def test_abort_ends_what_is_pending_and_leaves_nothing_behind() -> None:
    for errors, threads, registered in run_ranks(aborted, 2):
        assert "abort" in errors[0][1]
        for name, text, bases in errors:
            assert "SMDDPError" in bases or "RuntimeError" in bases, (name, text)
        assert (threads, registered) == (0, 0)


def killed(rank: int, world_size: int) -> Any:
    with staged_smddp():
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        first = raised(dist.all_reduce, torch.ones(10 * CHUNK_BYTES))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert work is not None
        second = raised(work.wait)
        third = raised(work.get_future().wait)
    return first, second, third, _staging_threads()


def test_a_killed_rank_is_named_to_all_others() -> None:
    outcomes: list[RankOutcome] = run_ranks(killed, 3, check=False, deadline_s=40)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].output
        (name, text, _), (second, _, _), (_, third, _), threads = outcomes[rank].value
        assert name == second == "SMDDPPeerLost", text
        assert "rank 1" in text
        assert "rank 1" in third
        assert threads == 0


def late(rank: int, world_size: int) -> Any:
    with staged_smddp():
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1.5))  # not while it is made
        store = dist.distributed_c10d._get_default_store()
        result = raised(dist.all_reduce, torch.ones(4)) if rank == 0 else None
        if rank == 0:
            store.set("over", b"")
        else:
            store.wait(["over"], timedelta(seconds=60))
        return result


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    name, text, _ = run_ranks(late, 2)[0]
    assert name == "SMDDPTimeoutError"
    assert "all_reduce" in text


def early_wait(rank: int, world_size: int) -> Any:
    with staged_smddp():
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["has waited"])
        tensor = tagged(rank, 5)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        result = None
        if rank == 0:
            result = raised(work.wait, timedelta(milliseconds=50))
            store.set("has waited", b"")
        work.wait()
        assert torch.equal(tensor, tagged(0, 5) + tagged(1, 5))
        return result


def test_wait_with_a_timeout_gives_up_and_the_operation_goes_on() -> None:
    name, text, bases = run_ranks(early_wait, 2)[0]
    assert name == "SMDDPTimeoutError"
    assert "TimeoutError" in bases
    assert "wait again" in text


def dropped(rank: int, world_size: int) -> int:
    """A group that is forgotten, not destroyed, must not keep its thread."""
    import gc

    with smddp():
        world: Any = dist.group.WORLD
        sub = world.split_group([0, 1])
        stage(sub)
        sub.allreduce(tagged(rank, 5)).wait()
        (thread,) = (t for t in threading.enumerate() if "smddp-staged" in t.name)
        dist.barrier()
        del sub
        gc.collect()
        thread.join(scaled(20.0))
        return _staging_threads()


def test_a_forgotten_group_keeps_no_thread() -> None:
    assert run_ranks(dropped, 2) == [0, 0]


_EXIT = """
import sys
sys.path.insert(0, {folder!r})
import torch, torch.distributed as dist
from lazy_device import stage
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("smddp")
stage(dist.group.WORLD)
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1000), async_op=True)  # the other rank never joins
"""


@pytest.mark.fresh
def test_exit_without_destroy_does_not_hang() -> None:
    from harness import run_script

    folder = os.path.dirname(os.path.abspath(__file__))
    for outcome in run_script(["-c", _EXIT.format(folder=folder)], 2, deadline_s=60):
        assert outcome.exit_code == 0
