# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a group makes of its ranks' reports, and which backend has which device.

No GPU is needed: reports are made up, and CUDA tensors are fake ones, which have a device and no
data.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_ranks import raised, smddp, tagged

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def _pretend(rank: int, devices: str, transport: str = "auto", has_nccl: bool = True) -> None:
    """Let this rank report one letter of `devices` as its device, `-` for none."""
    from smdistributed.dataparallel.torch.cuda.choice import RankReport
    from smdistributed.dataparallel.torch.cuda.create import CudaRequest

    device = "" if devices[rank] == "-" else devices[rank]
    report = RankReport(device, has_nccl, transport).encode()
    CudaRequest.report = lambda self: report  # type: ignore[method-assign]


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("smdistributed").addHandler(self)
        logging.getLogger("smdistributed").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def no_gpu_anywhere(rank: int, world_size: int) -> list[str]:
    records = _Records()
    with smddp():
        group: Any = dist.group.WORLD
        assert group._device_types == [CPU]
        assert group._get_backend(CUDA) is group
        dist.barrier(device_ids=[0])
    return records.lines


def test_without_a_gpu_nothing_is_said_about_one() -> None:
    lines = run_ranks(no_gpu_anywhere, 2)
    assert lines[1] == []
    assert len(lines[0]) == 1
    assert "CUDA" not in lines[0][0]


def some_have_none(rank: int, world_size: int) -> Any:
    _pretend(rank, "a-b", has_nccl=False)
    with smddp():
        group: Any = dist.group.WORLD
        assert group._device_types == [CPU]
        tensor = tagged(rank, 9)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.stack([tagged(r, 9) for r in range(3)]).sum(0))
        dist.barrier(device_ids=[0])
        errors = []
        with FakeTensorMode():
            fake = torch.empty(3, device="cuda:0")
            errors.append(raised(dist.all_reduce, fake))
            errors.append(raised(group.broadcast, fake, root=0))
            errors.append(raised(dist.isend, fake, 0))
        pair = dist.new_group([0, 2])  # decides for itself
        if rank != 1:
            assert pair._device_types == [CPU, torch.device("cuda")]
        return errors


def test_a_rank_without_a_gpu_is_named_where_cuda_tensors_are_used() -> None:
    for errors in run_ranks(some_have_none, 3):
        for name, text, bases in errors:
            assert name == "SMDDPUnsupported"
            assert "NotImplementedError" in bases
            assert "rank 1 has no CUDA device" in text
            assert "CUDA_VISIBLE_DEVICES" in text


def one_gpu_for_all(rank: int, world_size: int) -> Any:
    from smdistributed.dataparallel.torch.cuda.staged import StagedCollectives

    _pretend(rank, "aaa")
    records = _Records()
    with smddp():
        group: Any = dist.group.WORLD
        assert isinstance(group._handlers["cuda"], StagedCollectives)
        assert group._device_types == [CPU, torch.device("cuda")]
        assert group._get_backend(CUDA) is group
        assert dist.get_backend() == "smddp"
        everything: list[Any] = [None] * world_size
        dist.all_gather_object(everything, rank)  # objects stay on the CPU
        assert everything == list(range(world_size))
        dist.barrier()
        _pretend(rank, "abc", has_nccl=False)  # each group decides for itself
        half = group.split_group([0, 1]) if rank < 2 else group.split_group([2])
        assert half is not None
        half.shutdown()
    return records.lines


def test_ranks_that_share_a_gpu_are_staged_and_told_why_once() -> None:
    lines = [[line for line in some if "CUDA" in line] for some in run_ranks(one_gpu_for_all, 3)]
    assert "host memory" in lines[0][0]
    assert "ranks 0, 1, 2 share one CUDA device" in lines[0][0]
    assert "built without NCCL" in lines[0][1]
    assert lines[1] == []
    assert len(lines[2]) == 1, "rank 0 of its half"


def _group(rank: int, name: str) -> Any:
    return types.SimpleNamespace(rank=lambda: rank, getGroupName=lambda: name)


Decide = Callable[..., list[int]]


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Decide]:
    """Make a group in a process that has made none; returns the levels of what it logs."""
    from smdistributed.dataparallel.torch import notices
    from smdistributed.dataparallel.torch.cuda import create
    from smdistributed.dataparallel.torch.cuda.choice import RankReport

    monkeypatch.setenv("RANK", "0")
    notices.forget()
    monkeypatch.setattr(create, "_stage", lambda group, communicator: object())
    caplog.set_level(logging.INFO, logger="smdistributed")

    def made(rank: int, devices: str, transport: str = "auto") -> list[int]:
        caplog.clear()
        reports = [RankReport(device, True, transport).encode() for device in devices]
        path = create.CudaPath(
            _group(rank, "some"), create.CudaRequest(transport), reports, lambda *_: None
        )
        assert path.working_devices == ["cuda"]
        assert all("group 'some': CUDA tensors pass" in text for text in caplog.messages)
        return [record.levelno for record in caplog.records]

    yield made
    notices.forget()


def test_a_shared_gpu_is_a_warning_once_per_process_and_information_afterwards(
    decide: Decide,
) -> None:
    """Oversubscription is allowed, with one warning (dataparallel specification, section 3.4)."""
    assert decide(0, "aab") == [logging.WARNING]
    assert decide(0, "aab") == [logging.INFO]
    assert decide(0, "bb") == [logging.INFO]


def test_rank_zero_of_a_later_group_does_not_warn_again_for_the_job(
    decide: Decide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert decide(1, "aa") == []  # rank 0 of that group, another process, warned
    assert decide(0, "aa") == [logging.INFO]


def test_staging_by_choice_is_no_warning_and_leaves_the_first_one_due(decide: Decide) -> None:
    assert decide(0, "ab", transport="staged") == [logging.INFO]
    assert decide(0, "aa", transport="staged") == [logging.WARNING]


def forced(rank: int, world_size: int) -> Any:
    _pretend(rank, "aa", transport="nccl")
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    return raised(dist.init_process_group, "smddp")


def test_a_forced_nccl_on_a_shared_gpu_is_an_error_on_every_rank() -> None:
    for name, text, bases in run_ranks(forced, 2):
        assert name == "SMDDPConfigInvalid"
        assert "ValueError" in bases
        assert "ranks 0, 1 share one CUDA device" in text
        assert "unset SMDDP_TRANSPORT" in text


class _Recorder:
    """Stands where NCCL would: notes what arrives."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def note(*args: Any) -> Any:
            self.calls.append(name)
            return dist.Work()

        return note


def handed_on(rank: int, world_size: int) -> list[str]:
    from smdistributed.dataparallel.torch.cuda import create

    recorder = _Recorder()
    stores: list[Any] = []

    def create_nccl(store: Any, options: Any, nccl_options: Any) -> Any:
        stores.append((options.group_rank, options.group_size, options.global_ranks_in_group))
        return recorder

    _pretend(rank, "ab")
    create.create_nccl = create_nccl  # type: ignore[assignment]
    records = _Records()
    with smddp():
        group: Any = dist.group.WORLD
        assert [line for line in records.lines if "NCCL: each rank" in line] or rank
        assert group._device_types == [CPU, torch.device("cuda")]
        assert stores == [(rank, 2, [])]
        with FakeTensorMode():
            t = torch.empty(4, device="cuda:0")
            two = [torch.empty(4, device="cuda:0") for _ in range(2)]
            wide = torch.empty(8, device="cuda:0")
            dist.all_reduce(t, async_op=True)
            dist.all_reduce(t, op=dist.ReduceOp.AVG, async_op=True)
            dist.reduce(t, 0, async_op=True)
            group.broadcast(t, root=0)
            dist.all_gather(two, t, async_op=True)
            dist.all_gather_single(wide, t, async_op=True)
            dist.reduce_scatter(t, two, async_op=True)
            dist.reduce_scatter_single(t, wide, async_op=True)
            dist.all_to_all(two, two, async_op=True)
            dist.all_to_all_single(wide, wide, async_op=True)
            dist.gather(t, two if rank == 0 else None, async_op=True)
            dist.scatter(t, two if rank == 0 else None, async_op=True)
            dist.isend(t, 1 - rank)
            dist.irecv(t, 1 - rank)
            group.recv_anysource([t], 0)
            group.allreduce_coalesced(two)
            group.allgather_coalesced([two, two], two)
            group.all_gather_single_coalesced([wide], [t])
            group.reduce_scatter_single_coalesced([t], [wide])
        group._start_coalescing(CUDA)
        group._end_coalescing(CUDA)
        dist.distributed_c10d._set_pg_timeout(dist.default_pg_timeout)
        tensor = tagged(rank, 5)
        dist.all_reduce(tensor)  # CPU tensors are ours
        assert torch.equal(tensor, tagged(0, 5) + tagged(1, 5))
    return recorder.calls


def test_every_operation_on_cuda_tensors_is_handed_to_nccl() -> None:
    expected = [
        *["allreduce", "allreduce", "reduce", "broadcast", "allgather", "all_gather_single"],
        *["reduce_scatter", "reduce_scatter_single", "alltoall", "all_to_all_single"],
        *["gather", "scatter", "send", "recv", "recv_anysource", "allreduce_coalesced"],
        *["allgather_coalesced", "all_gather_single_coalesced", "reduce_scatter_single_coalesced"],
        *["_start_coalescing", "_end_coalescing", "set_timeout", "shutdown"],
    ]
    assert run_ranks(handed_on, 2) == [expected] * 2


def gloo_has_the_cpu(rank: int, world_size: int, backend: str) -> None:
    with smddp(backend):
        group: Any = dist.group.WORLD
        assert dist.get_backend() == backend
        assert isinstance(group._get_backend(CPU), dist.ProcessGroupGloo)
        assert group._get_backend(CUDA) is group
        # Our engine must see none of this: close it.
        group._engine.close()
        both = tagged(0, 6) + tagged(1, 6)
        mine = tagged(rank, 6)
        for reduce_op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            tensor = mine.clone()
            dist.all_reduce(tensor, op=reduce_op)
            assert torch.equal(tensor, both if reduce_op == dist.ReduceOp.SUM else tagged(1, 6))
        work = dist.all_reduce(mine.clone(), async_op=True)
        assert work is not None
        assert torch.equal(work.get_future().wait()[0], both)
        wide = torch.empty(12)
        dist.all_gather_single(wide, mine)
        assert torch.equal(wide, torch.cat([tagged(0, 6), tagged(1, 6)]))
        half = torch.empty(3)
        dist.reduce_scatter_single(half, mine)
        assert torch.equal(half, both[3 * rank : 3 * rank + 3])
        swapped = torch.empty(6)
        dist.all_to_all_single(swapped, mine)
        assert torch.equal(swapped[3:], tagged(1, 6)[3 * rank : 3 * rank + 3])
        dist.broadcast(mine, 1)
        assert torch.equal(mine, tagged(1, 6))
        if rank == 0:
            dist.send(mine, 1)
        else:
            dist.recv(half.new_empty(6), 0)
        dist.barrier()
        everything: list[Any] = [None] * 2
        dist.all_gather_object(everything, rank)
        assert everything == [0, 1]


@pytest.mark.parametrize("backend", ["cuda:smddp,cpu:gloo", "cpu:gloo,cuda:smddp"])
def test_cpu_tensors_of_another_backend_never_reach_the_engine(backend: str) -> None:
    run_ranks(gloo_has_the_cpu, 2, backend)


def default_device(rank: int, world_size: int, folder: str) -> None:
    from lazy_device import staged_smddp

    for start in (smddp, staged_smddp):
        where = f"file://{folder}/{start.__name__}"
        with (
            start(init_method=where, rank=rank, world_size=world_size),
            torch.device("meta"),
        ):
            sparse = torch.eye(3, device="cpu").to_sparse()
            dist.all_reduce(sparse)
            assert torch.equal(sparse.to_dense(), 2 * torch.eye(3, device="cpu"))
            holes = torch.zeros(2, 3, 2, device="cpu")[:, :, 0]
            dist.reduce_scatter_single(holes, torch.ones(12, device="cpu"))
            assert torch.equal(holes, torch.full((2, 3), 2.0, device="cpu"))


def test_a_default_device_of_the_script_is_not_taken_for_that_of_the_tensors(
    tmp_path: Path,
) -> None:
    """`torch.set_default_device("cuda")` once broke sums of sparse CPU tensors."""
    run_ranks(default_device, 2, str(tmp_path))


def smddp_has_the_cpu(rank: int, world_size: int) -> None:
    from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp

    with smddp("cuda:nccl,cpu:smddp"):
        group: Any = dist.group.WORLD
        assert isinstance(group, ProcessGroupSmddp)
        assert dist.get_backend() == "cuda:nccl,cpu:smddp"
        assert group._get_backend(CPU) is group
        if not dist.is_nccl_available():
            _, text, _ = raised(group._get_backend, CUDA)
            assert "No backend type associated with device type cuda" in text
        tensor = tagged(rank, 6)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, tagged(0, 6) + tagged(1, 6))


def test_cuda_nccl_beside_cpu_smddp() -> None:
    run_ranks(smddp_has_the_cpu, 2)
