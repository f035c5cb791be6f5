# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Shared buffers between processes: zero-copy all_reduce through collectives and torch.

Source: `Communicator.allocate_shared`; docs/algorithms.md, "shared".
"""

from __future__ import annotations

import gc
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from engine_ranks import heard, wait_for_files
from harness import run_ranks
from torch_ranks import algorithms_of, smddp

DEADLINE_S = 120.0
_COUNT = 100_003  # elements; large enough not to travel with the arrival
GIBIBYTE = 1 << 30


# --- collectives ---------------------------------------------------------------------------------


def reduces_in_place(rank: int, world_size: int) -> list[str]:
    from smdistributed import collectives

    def fill(array: Any) -> None:
        array[:] = np.arange(_COUNT) % 1000 + rank

    expected = world_size * (np.arange(_COUNT) % 1000) + sum(range(world_size))
    with collectives.init() as comm:
        memory = comm.allocate_shared(_COUNT * 8 + 16)
        assert memory is not None
        assert memory.dtype == np.uint8
        assert memory.shape == (_COUNT * 8 + 16,)
        assert memory.flags.writeable
        assert memory.ctypes.data % 128 == 0
        assert not memory.any()
        shared = memory[16:].view(np.float64)
        private = np.empty(_COUNT)

        def all_reduces() -> None:
            for _ in range(3):
                fill(shared)
                comm.all_reduce(shared)
                np.testing.assert_array_equal(shared, expected)
            # Rank 0 alone brings an ordinary array.
            mine = private if rank == 0 else shared
            fill(mine)
            comm.all_reduce(mine)
            np.testing.assert_array_equal(mine, expected)
            fill(shared)
            work = comm.all_reduce(shared, collectives.ReduceOp.MAX, async_op=True)
            assert work is not None
            work.wait()
            np.testing.assert_array_equal(shared, np.arange(_COUNT) % 1000 + world_size - 1)

        return algorithms_of(all_reduces)


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_arrays_in_shared_memory_are_reduced_in_place(world_size: int) -> None:
    for algorithms in run_ranks(reduces_in_place, world_size, deadline_s=DEADLINE_S):
        assert algorithms == ["shared"] * 3 + ["staged", "shared"]


def outlives_the_group(rank: int, world_size: int) -> int:
    from smdistributed import collectives

    comm = collectives.init()
    memory = comm.allocate_shared(1 << 20)
    assert memory is not None
    view = memory[100:200].view(np.int32)
    view[:] = rank + 1
    comm.close()
    assert comm.allocate_shared(1) is None
    del comm, memory
    gc.collect()
    view += 1
    return int(view.sum())


def test_an_array_outlives_the_group() -> None:
    assert run_ranks(outlives_the_group, 2, deadline_s=DEADLINE_S) == [50, 75]


def stops_its_peer(rank: int, world_size: int, folder: str) -> tuple[str, int]:
    """Rank 0 stops rank 1 in the middle of a sum, gives up, and lets it go on.

    Returns:
        What this rank was told, and how many elements have changed since.
    """
    from smdistributed import collectives

    comm = collectives.init()
    memory = comm.allocate_shared(128 << 20)
    assert memory is not None
    array = memory.view(np.float32)
    array[:] = rank + 1
    comm.barrier()
    if rank == 1:
        told = None
        while told is None:
            told = heard(comm.all_reduce, array)
        Path(folder, "through").touch()
        return told.text, 0
    peer = comm.topology()[1]["pid"]
    told = None
    while told is None:
        of_the_peer = array.size // 2 + 64  # the first elements that it reduces
        before = array[of_the_peer]
        work = comm.all_reduce(array, async_op=True, timeout_s=1.0)
        assert work is not None
        while array[of_the_peer] == before:
            pass
        os.kill(peer, signal.SIGSTOP)
        told = heard(work.wait)
        array[:] = 0.0
        os.kill(peer, signal.SIGCONT)
    wait_for_files(folder, ["through"])
    return told.text, int(np.count_nonzero(array))


def test_a_stopped_peer_writes_nothing_after_the_call_has_returned(tmp_path: Path) -> None:
    results = run_ranks(stops_its_peer, 2, str(tmp_path), deadline_s=DEADLINE_S)
    for text, changed in results:
        assert "rank 1" in text
        assert changed == 0


def finds_none(rank: int, world_size: int) -> str | None:
    from smdistributed import collectives

    with collectives.init() as comm:
        found = comm.allocate_shared(4096)
        array = np.ones(_COUNT)
        comm.all_reduce(array)
        assert array[-1] == world_size
        algorithm = comm.explain("all_reduce", 8 * _COUNT).split(":")[0]
        return algorithm if found is None else None


def test_one_rank_and_tcp_have_none() -> None:
    assert run_ranks(finds_none, 1, deadline_s=DEADLINE_S) == ["alone"]
    tcp = {"SMDDP_TRANSPORT": "tcp"}
    assert run_ranks(finds_none, 2, env=tcp, deadline_s=DEADLINE_S) == ["hierarchical"] * 2


def has_little_address_space(rank: int, world_size: int, poor: int) -> str | None:
    if rank == poor:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + GIBIBYTE, resource.RLIM_INFINITY))
    return finds_none(rank, world_size)


@pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 4 * GIBIBYTE,
    reason="arenas are so small on this machine that they fit into the limit",
)
def test_ranks_without_address_space_mean_ordinary_memory_for_all() -> None:
    """One that cannot map the arenas, found out while joining: it shares the rest of the region."""
    outcome = run_ranks(has_little_address_space, 3, 1, deadline_s=DEADLINE_S)
    assert outcome == ["staged"] * 3


def has_small_files(rank: int, world_size: int) -> str | None:
    """A file that grows beyond the limit would end the process by a signal."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, resource.RLIM_INFINITY))
    return finds_none(rank, world_size)


def test_a_limit_of_file_sizes_is_respected() -> None:
    assert run_ranks(has_small_files, 2, deadline_s=DEADLINE_S) == ["staged"] * 2


def forks_with_buffers(rank: int, world_size: int) -> int:
    from smdistributed import collectives

    with collectives.init() as comm:
        memory = comm.allocate_shared(_COUNT * 8)
        assert memory is not None
        array = memory.view(np.float64)
        child = os.fork()
        if child == 0:
            del array, memory  # the child drops what it inherited
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        array[:] = 1
        comm.all_reduce(array)
        assert array.sum() == world_size * _COUNT
        return os.waitstatus_to_exitcode(status)


def test_a_forked_child_drops_buffers_without_harm() -> None:
    assert run_ranks(forks_with_buffers, 2, deadline_s=DEADLINE_S) == [0, 0]


def refuses(rank: int, world_size: int) -> list[str]:
    from smdistributed import collectives

    texts = []
    with collectives.init() as comm:
        for nbytes in (0, -1):
            with pytest.raises(ValueError, match="expected at least 1") as caught:
                comm.allocate_shared(nbytes)
            texts.append(str(caught.value))
    return texts


def test_no_bytes_are_refused() -> None:
    (texts, _) = run_ranks(refuses, 2, deadline_s=DEADLINE_S)
    assert "allocate_shared was asked for 0 bytes" in texts[0]
    assert "allocate_shared was asked for -1 bytes" in texts[1]


# --- torch ---------------------------------------------------------------------------------------


def reduces_tensors_in_place(rank: int, world_size: int) -> list[str]:
    with smddp():
        group: Any = dist.distributed_c10d._get_default_group()
        memory = group.allocate_shared(_COUNT * 4)
        assert memory.dtype == torch.uint8
        assert memory.shape == (_COUNT * 4,)
        assert memory.device.type == "cpu"
        assert memory.data_ptr() % 128 == 0
        assert not memory.any()
        tensor = memory.view(torch.float32)
        del memory
        expected = torch.full((_COUNT,), sum(range(1, world_size + 1)), dtype=torch.float32)

        def all_reduces() -> None:
            tensor.fill_(rank + 1)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, expected)
            tensor.fill_(rank + 1)
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True).wait()
            assert torch.equal(tensor, expected / world_size)
            # A view; and the tensor may be dropped while its operation is under way.
            work = dist.all_reduce(tensor.fill_(1)[1:90_001], async_op=True)
            work.wait()
            assert tensor[0] == 1
            assert bool((tensor[1:90_001] == world_size).all())
            assert bool((tensor[90_001:] == 1).all())

        return algorithms_of(all_reduces)


@pytest.mark.parametrize("world_size", [2, 3])
def test_tensors_in_shared_memory_are_reduced_in_place(world_size: int) -> None:
    outcome = run_ranks(reduces_tensors_in_place, world_size, deadline_s=DEADLINE_S)
    assert outcome == [["shared"] * 3] * world_size


def keeps_a_tensor(rank: int, world_size: int) -> float:
    with smddp():
        group: Any = dist.distributed_c10d._get_default_group()
        tensor = group.allocate_shared(4096).view(torch.float32)
        tensor.fill_(rank)
        dist.barrier()
    del group
    gc.collect()
    tensor += 1
    return float(tensor.sum())


def test_a_tensor_outlives_the_process_group() -> None:
    assert run_ranks(keeps_a_tensor, 2, deadline_s=DEADLINE_S) == [1024.0, 2048.0]
