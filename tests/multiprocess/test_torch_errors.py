# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input and lost ranks: a clear error, of the documented class, on every rank concerned."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import RankOutcome, run_ranks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_ranks import raised, smddp, tagged


def _calls() -> dict[str, tuple[Any, ...]]:
    """What is wrong -> (call, class, a part of the text that helps). Wrong on every rank alike."""
    holes = torch.zeros(8)[::2]
    sparse = torch.eye(2).to_sparse()
    meta = torch.zeros(3, device="meta")
    n = dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    eight_bit = torch.zeros(2).to(torch.float8_e5m2)
    return {
        "a view with holes, in place": (
            lambda: dist.all_reduce(holes),
            "SMDDPConfigInvalid",
            "Pass tensor.contiguous()",
        ),
        "an expanded tensor": (
            lambda: dist.broadcast(torch.ones(1).expand(4), 0),
            "SMDDPConfigInvalid",
            "Pass tensor.contiguous()",
        ),
        "a permuted tensor sent": (
            lambda: dist.isend(torch.zeros(2, 3).t(), 0),
            "SMDDPConfigInvalid",
            "Pass tensor.contiguous()",
        ),
        "sparse": (lambda: group.broadcast(sparse, root=0), "SMDDPUnsupported", "to_dense()"),
        "sparse maximum": (
            lambda: dist.all_reduce(sparse, op=dist.ReduceOp.MAX),
            "SMDDPUnsupported",
            "to_dense()",
        ),
        "meta": (lambda: group.allreduce(meta), "SMDDPConfigInvalid", "Materialise it first"),
        "average of booleans": (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG),
            "SMDDPUnsupported",
            "SMDDP does not support: ReduceOp. all_reduce was called with AVG on bool",
        ),
        "bitwise on floats": (
            lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
            "SMDDPUnsupported",
            "SMDDP does not support: ReduceOp",
        ),
        "8-bit floats": (
            lambda: dist.all_reduce(eight_bit),
            "SMDDPUnsupported",
            "SMDDP does not support: ReduceOp",
        ),
        "output of the wrong size": (
            lambda: dist.all_gather_single(torch.empty(2 * n + 1), torch.ones(2)),
            "SMDDPConfigInvalid",
            f"Allocate {2 * n} elements",
        ),
        "input of the wrong size": (
            lambda: dist.reduce_scatter_single(torch.empty(2), torch.ones(2 * n + 1)),
            "SMDDPConfigInvalid",
            "Pad the input",
        ),
        "list of the wrong length": (
            lambda: dist.all_gather([torch.empty(2)] * (n + 1), torch.ones(2)),
            "SMDDPConfigInvalid",
            "Build the list from group.size()",
        ),
        "two dtypes": (
            lambda: group.allgather([torch.empty(2, dtype=torch.int8)] * n, torch.ones(2)),
            "SMDDPConfigInvalid",
            "must have one dtype",
        ),
        "rows that do not divide": (
            lambda: dist.all_to_all_single(torch.empty(n + 1), torch.ones(n + 1)),
            "SMDDPConfigInvalid",
            "pad the tensor",
        ),
        "split sizes of the wrong sum": (
            lambda: dist.all_to_all_single(torch.empty(n), torch.ones(n), [2] * n, [1] * n),
            "SMDDPConfigInvalid",
            "equal in sum",
        ),
        "too few split sizes": (
            lambda: dist.all_to_all_single(torch.empty(n), torch.ones(n), [n], [1] * n),
            "SMDDPConfigInvalid",
            "Pass one entry per rank",
        ),
        "a root that does not exist": (
            lambda: group.broadcast(torch.ones(2), root=n),
            "SMDDPConfigInvalid",
            "Ranks of a sub-group count from 0",
        ),
        "two tensors for one rank": (
            lambda: group.broadcast([torch.ones(2), torch.ones(2)], root=0),
            "SMDDPConfigInvalid",
            "Use the coalesced form",
        ),
    }


def bad_tensors(rank: int, world_size: int) -> None:
    with smddp():
        for wrong, (call, class_name, help_text) in _calls().items():
            name, text, bases = raised(call)
            assert name == class_name, (wrong, name, text)
            assert help_text in text, (wrong, text)
            assert "SMDDPError" in bases
        name, _, bases = raised(dist.all_reduce, torch.ones(2), op=dist.ReduceOp.BAND)
        assert "RuntimeError" in bases, "scripts catch the original's RuntimeError"
        # None of these may have left anything behind in the group.
        tensor = tagged(rank, 3)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, sum(tagged(r, 3) for r in range(world_size)))


def test_bad_tensors_raise_before_anything_moves() -> None:
    run_ranks(bad_tensors, 2)


def without_memory(rank: int, world_size: int) -> None:
    """As FSDP leaves the parameters that it has sharded. Of CUDA tensors torch says it itself."""
    freed = torch.zeros(3)
    view = freed[1:]
    freed.untyped_storage().resize_(0)
    assert view.data_ptr() != 0
    peer = 1 - rank
    with smddp():
        for call, *others in (
            (dist.all_reduce,),
            (dist.send, peer),
            (dist.recv, peer),
            (dist.broadcast, 0),
            (lambda t: dist.all_reduce_coalesced([t, t]),),
            (lambda t: dist.all_gather([torch.ones(t.shape), t], torch.ones(t.shape)),),
            (lambda t: dist.all_to_all_single(torch.ones(t.shape), t, [1, 1], [1, 1]),),
        ):
            name, text, _ = raised(call, view, *others)
            assert name == "SMDDPConfigInvalid", text
            assert "without memory behind them" in text, text
        with FakeTensorMode():
            fake = torch.zeros(8)[1:]
        for tensor in (freed, fake):
            name, text, _ = raised(dist.all_reduce, tensor)
            assert "without memory behind them" in text, text
        tensor = tagged(rank, 3)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, sum(tagged(r, 3) for r in range(world_size)))


def test_tensors_without_memory_are_refused() -> None:
    run_ranks(without_memory, 2)


def disagree(rank: int, world_size: int, how: str) -> tuple[str, str, list[str]]:
    odd = rank == 1
    group_calls: dict[str, Any] = {
        "count": lambda: dist.all_reduce(torch.ones(5 if odd else 4)),
        "dtype": lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32 if odd else None)),
        "reduce operation": lambda: dist.all_reduce(
            torch.ones(4), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
        ),
        "root": lambda: dist.broadcast(torch.ones(4), src=1 if odd else 0),
        "operation": lambda: (
            dist.broadcast(torch.ones(4), src=0) if odd else dist.all_reduce(torch.ones(4))
        ),
        "large count": lambda: dist.all_reduce(torch.ones(3_000_001 if odd else 3_000_000)),
        "async": lambda: dist.all_reduce(torch.ones(5 if odd else 4), async_op=True).wait(),
    }
    with smddp():
        return raised(group_calls[how])


@pytest.mark.parametrize(
    "how", ["count", "dtype", "reduce operation", "root", "operation", "large count", "async"]
)
def test_ranks_that_disagree_all_hear_of_it(how: str) -> None:
    for name, text, bases in run_ranks(disagree, 3, how):
        assert name == "SMDDPMismatch", text
        assert "SMDDPError" in bases
        assert "RuntimeError" in bases
        assert "rank 1" in text, text


def sparse_shapes_disagree(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with smddp():
        return raised(dist.all_reduce, torch.eye(3 + rank).to_sparse())


def test_sparse_shapes_that_disagree() -> None:
    for name, text, _ in run_ranks(sparse_shapes_disagree, 2):
        assert name == "SMDDPMismatch"
        assert "(4, 4)" in text


def absent(rank: int, world_size: int, folder: str) -> Any:
    # Longer than this test may take: only the timeout that is set later can end the wait.
    with smddp(timeout_s=3600):
        # Not from the beginning: on a busy machine the ranks do not come so close together.
        dist.barrier()
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1.5))
        start = time.monotonic()
        result = None
        if rank != 1:
            result = raised(dist.all_reduce, torch.ones(4))
            Path(folder, f"heard-{rank}").touch()
        took_s = time.monotonic() - start
        # All stay until both have given up, so that it is lateness and not loss.
        while len(os.listdir(folder)) < world_size - 1:
            time.sleep(0.01)
        return result, took_s


def test_a_rank_that_does_not_come_is_named_after_the_timeout(tmp_path: Path) -> None:
    outcomes = run_ranks(absent, 3, str(tmp_path), deadline_s=40)
    for rank in (0, 2):
        (name, text, bases), _ = outcomes[rank]
        assert name == "SMDDPTimeoutError", text
        assert "TimeoutError" in bases
        assert "all_reduce" in text
        assert " timeout " in text
    # The first whose time is over speaks for all, also for those who came later.
    assert max(outcomes[rank][1] for rank in (0, 2)) > 1.0, "gave up too early"


def timeouts_of_their_own(rank: int, world_size: int) -> Any:
    with smddp():
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()  # to make the group takes both of them, within its timeout
        group = dist.new_group(timeout=timedelta(seconds=2))
        result = None
        if rank == 0:
            result = raised(dist.barrier, group=group)
            store.set("given up", b"")
        else:
            store.wait(["given up"])
            time.sleep(2.5)  # the lateness under test, longer than the timeout of `group`
        tensor = tagged(rank, 3)
        dist.all_reduce(tensor)
        return result


def test_each_group_has_its_own_timeout() -> None:
    (name, text, _), _ = run_ranks(timeouts_of_their_own, 2)
    assert name == "SMDDPTimeoutError"
    assert "barrier" in text


def killed(rank: int, world_size: int) -> Any:
    with smddp():
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        first = raised(dist.all_reduce, torch.ones(4))
        second = raised(dist.barrier)
        return first, second


def test_a_killed_rank_is_named_to_all_others() -> None:
    outcomes: list[RankOutcome] = run_ranks(killed, 3, check=False, deadline_s=20)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].output
        (name, text, bases), (second_name, _, _) = outcomes[rank].value
        assert name == "SMDDPPeerLost", text
        assert "ConnectionError" in bases
        assert "rank 1" in text
        assert second_name == "SMDDPPeerLost", "the first error stays"


def killed_in_a_sub_group(rank: int, world_size: int) -> Any:
    with smddp():
        store = dist.distributed_c10d._get_default_store()
        pair = dist.new_group([2, 1])
        if rank == 0:  # which keeps the store
            store.wait(["seen"])
            return None
        dist.all_reduce(torch.ones(4), group=pair)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        error = raised(dist.all_reduce, torch.ones(4), group=pair)
        store.set("seen", b"")
        return error


def test_a_killed_rank_of_a_sub_group_has_its_number_in_the_job() -> None:
    """It was "rank 0", whose log says nothing."""
    outcomes: list[RankOutcome] = run_ranks(killed_in_a_sub_group, 3, check=False, deadline_s=20)
    assert outcomes[2].ok, outcomes[2].output
    name, text, _ = outcomes[2].value
    assert name == "SMDDPPeerLost", text
    assert "on rank 1 of 2 (rank 2 of the job, host" in text
    assert "rank 1 of the job (0 of this group, host" in text
    assert "Read the log of rank 1 of the job first" in text


def ddp_after_loss(rank: int, world_size: int) -> Any:
    with smddp():
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
        model(torch.ones(2, 10)).sum().backward()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return raised(lambda: model(torch.ones(2, 10)).sum().backward())


def test_ddp_tells_of_a_killed_rank_and_does_not_crash() -> None:
    """A future's exception set from Python would end the process in DDP's C++ code."""
    outcomes = run_ranks(ddp_after_loss, 2, check=False, deadline_s=20)
    assert outcomes[0].ok, outcomes[0].output
    _, text, bases = outcomes[0].value
    assert "rank 1" in text
    assert "RuntimeError" in bases or "ConnectionError" in bases


def aborted(rank: int, world_size: int) -> Any:
    with smddp():
        group = dist.group.WORLD
        assert group is not None
        work = dist.irecv(torch.empty(4), src=1 - rank)
        assert work is not None
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store.wait(["receiving"])  # not a barrier: the abort could overtake its end
            group.abort()
        else:
            store.set("receiving", b"")
        return raised(work.wait), raised(dist.all_reduce, torch.ones(2))


def test_abort_ends_what_is_pending_on_every_rank() -> None:
    for (_, text, bases), (_, _, later_bases) in run_ranks(aborted, 2):
        assert "SMDDPError" in bases
        assert "SMDDPError" in later_bases
        assert "abort" in text


def missing_ranks(rank: int, world_size: int) -> Any:
    """Two of three ranks make a group over the store; the third never does."""
    from smdistributed.dataparallel.torch.exchange import store_exchange

    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0
    )
    result = None
    store.set(f"here/{rank}", b"")
    store.wait([f"here/{r}" for r in range(3)])
    if rank != 1:
        exchange = store_exchange(store, rank, 3, timeout_s=3.0)
        result = raised(exchange, "addresses", b"x")
    store.set(f"done/{rank}", b"")
    if rank == 0:  # it serves the store
        store.wait([f"done/{r}" for r in range(3)])
    return result


def test_ranks_missing_at_the_start_are_named() -> None:
    outcomes = run_ranks(missing_ranks, 3)
    for rank in (0, 2):
        name, text, _ = outcomes[rank]
        assert name == "SMDDPTimeoutError"
        assert "ranks [1] of 3 did not come" in text
