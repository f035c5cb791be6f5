# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Registration, process groups, sub-groups, meshes, and other backends in the same process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import free_port, run_ranks, run_script
from heard import listen
from machine_speed import scaled
from torch_ranks import raised, smddp, tagged

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

_IMPORT = """
import torch.distributed as dist
before = dict(dist.Backend.default_device_backend_map)
import smdistributed.dataparallel.torch.torch_smddp as once
import importlib
importlib.reload(once)
assert dist.is_backend_available("smddp") and dist.Backend.SMDDP == "smddp"
assert dist.Backend.default_device_backend_map == before
assert dist.Backend.backend_list.count("smddp") == 1
assert dist.get_default_backend_for_device("cpu") == "gloo"
"""


def test_the_import_registers_once_prints_nothing_and_takes_no_default() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _IMPORT],
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_EXIT = """
import torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("smddp")
dist.all_reduce(torch.ones(4))
work = dist.all_reduce(torch.ones(1000), async_op=True)
"""


@pytest.mark.fresh
def test_exit_without_destroy_is_clean() -> None:
    for outcome in run_script(["-c", _EXIT], 2):
        assert outcome.output == ""


def variables(rank: int, world_size: int) -> Any:
    import os

    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    names = ("LOCAL_RANK", "SMDATAPARALLEL_LOCAL_RANK", "NODE_RANK")
    return [os.environ.get(name) for name in names]


def test_the_import_sets_the_variables_that_scripts_read() -> None:
    assert run_ranks(variables, 2) == [["0", "0", "0"], ["1", "1", "0"]]


def about_itself(rank: int, world_size: int) -> None:
    with smddp():
        group = dist.group.WORLD
        assert group is not None
        assert dist.get_backend() == "smddp"
        assert group.name() == "smddp"
        assert (group.rank(), group.size()) == (rank, world_size)
        assert group.group_name == dist.distributed_c10d._get_process_group_name(group)
        assert group.group_desc == "default_pg"
        assert group._get_backend(torch.device("cpu")) is group
        assert group._device_types == [torch.device("cpu")]
        assert group.bound_device_id is None
        sub = dist.new_group([1, 0], group_desc="pair")
        assert sub.group_desc == "pair"
        assert dist.get_backend(sub) == "smddp", "a sub-group inherits the backend"
        dist.barrier(device_ids=[0])


def test_what_a_group_says_about_itself() -> None:
    run_ranks(about_itself, 2)


def sub_groups(rank: int, world_size: int) -> None:
    with smddp():
        groups = []
        for size in range(1, world_size + 1):
            for first in range(world_size - size + 1):
                ranks = list(range(first, first + size))
                groups.append((ranks, dist.new_group(ranks)))
        for ranks, group in reversed(groups):
            if rank in ranks:
                tensor = tagged(rank, 129)
                dist.all_reduce(tensor, group=group)
                assert torch.equal(tensor, torch.stack([tagged(r, 129) for r in ranks]).sum(0))
        works = []
        for ranks, group in groups:  # all of them in flight at once
            if rank in ranks:
                tensor = tagged(rank, 5000)
                works.append((ranks, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
        for ranks, tensor, work in works:
            assert work is not None
            work.wait()
            assert torch.equal(tensor, torch.stack([tagged(r, 5000) for r in ranks]).sum(0))
        for ranks, group in groups[::2]:
            if rank in ranks:
                dist.destroy_process_group(group)


@pytest.mark.parametrize("world_size", [3, 5])
def test_many_groups_at_once(world_size: int) -> None:
    run_ranks(sub_groups, world_size, deadline_s=120)


def split(rank: int, world_size: int) -> None:
    with smddp():
        world = dist.group.WORLD
        assert world is not None
        halves = [world.split_group(ranks) for ranks in ([0, 1], [2])]
        mine = halves[0] if rank < 2 else halves[1]
        assert halves[1 if rank < 2 else 0] is None
        assert mine is not None
        assert mine.size() == (2 if rank < 2 else 1)
        tensor = tagged(rank, 3)
        mine.allreduce(tensor).wait()
        expected = tagged(0, 3) + tagged(1, 3) if rank < 2 else tagged(2, 3)
        assert torch.equal(tensor, expected)


def test_split_group() -> None:
    run_ranks(split, 3)


def split_with_token(rank: int, world_size: int) -> list[str]:
    told = listen()
    with smddp():
        world = dist.group.WORLD
        assert world is not None
        half = world.split_group([0, 1])
        assert half is not None
        half.allreduce(tagged(rank, 3)).wait()
    return told.texts


def test_a_split_group_keeps_the_jobs_token() -> None:
    """Without one, a group over TCP warns that whoever can read the store can take part."""
    over_tcp = {"SMDDP_TRANSPORT": "tcp"}
    for lines in run_ranks(split_with_token, 2, env={**over_tcp, "SMDDP_TOKEN": "secret"}):
        assert not any("no job token" in line for line in lines)
    lines = run_ranks(split_with_token, 2, env={**over_tcp, "SMDDP_TOKEN": ""})[0]
    assert any("no job token" in line for line in lines)


def again(rank: int, world_size: int, ports: list[int]) -> None:
    for generation, port in enumerate(ports):
        # A port each: a rank must not meet the store of the generation before.
        where = f"tcp://127.0.0.1:{port}"
        with smddp(init_method=where, rank=rank, world_size=world_size):
            tensor = tagged(rank + generation, 129)
            dist.all_reduce(tensor)
            expected = torch.stack([tagged(r + generation, 129) for r in range(world_size)]).sum(0)
            assert torch.equal(tensor, expected)


def test_destroy_and_init_again() -> None:
    run_ranks(again, 2, [free_port() for _ in range(3)])


def again_over_one_store(rank: int, world_size: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", world_size)
    for _ in range(3):
        with smddp(store=store, rank=rank, world_size=world_size):
            tensor = tagged(rank, 3)
            dist.all_reduce(tensor)
            assert torch.equal(
                tensor, torch.stack([tagged(r, 3) for r in range(world_size)]).sum(0)
            )


def test_init_again_over_a_store_that_stays(tmp_path: Any) -> None:
    """Left-over keys of an earlier group would be taken for the new one's."""
    run_ranks(again_over_one_store, 2, str(tmp_path))


def beside_gloo(rank: int, world_size: int, folder: str) -> None:
    with smddp(init_method=f"file://{folder}/smddp", rank=rank, world_size=world_size):
        gloo = dist.new_group(backend="gloo")
        expected = torch.stack([tagged(r, 129) for r in range(world_size)]).sum(0)
        for group in (None, gloo, None, gloo):
            tensor = tagged(rank, 129)
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, expected)
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=world_size
    )
    ours = dist.new_group(backend="smddp")
    tensor = tagged(rank, 129)
    dist.all_reduce(tensor, group=ours)
    assert torch.equal(tensor, expected)
    assert (dist.get_backend(), dist.get_backend(ours)) == ("gloo", "smddp")
    dist.destroy_process_group()


def test_beside_gloo_either_way_round(tmp_path: Any) -> None:
    run_ranks(beside_gloo, 2, str(tmp_path))


def combined(rank: int, world_size: int, backend: str, cpu_backend: str) -> None:
    with smddp(backend):
        assert dist.get_backend() == backend
        world = dist.group.WORLD
        assert world is not None
        assert world._get_backend(torch.device("cpu")).name() == cpu_backend
        for group in (None, dist.new_group([0, 1])):
            tensor = tagged(rank, 129)
            dist.all_reduce(tensor, group=group)
            work = dist.all_reduce(tensor, group=group, op=dist.ReduceOp.MAX, async_op=True)
            assert work is not None
            work.wait()
            assert torch.equal(tensor, tagged(0, 129) + tagged(1, 129))
            outputs = [torch.empty(3) for _ in range(2)]
            dist.all_gather(outputs, tagged(rank, 3), group=group)
            assert torch.equal(outputs[1], tagged(1, 3))
            dist.barrier(group=group)
            everything: list[Any] = [None, None]
            dist.all_gather_object(everything, rank, group=group)
            assert everything == [0, 1]


@pytest.mark.parametrize(
    ("backend", "cpu_backend"),
    [
        ("cpu:smddp", "smddp"),
        ("cpu:smddp,cuda:nccl", "smddp"),
        ("cpu:smddp,cuda:smddp", "smddp"),
        ("cuda:smddp,cpu:gloo", "gloo"),
        ("cpu:gloo,cuda:smddp", "gloo"),
    ],
)
def test_backend_strings_come_out_as_written(backend: str, cpu_backend: str) -> None:
    run_ranks(combined, 2, backend, cpu_backend)


def beside_nccl_without_gpu(rank: int, world_size: int) -> None:
    torch.cuda.device_count = lambda: 0
    dist.is_nccl_available = lambda: True
    combined(rank, world_size, "cpu:smddp,cuda:nccl", "smddp")


def test_a_torch_with_nccl_needs_no_gpu() -> None:
    """As it comes from PyPI, on a laptop."""
    run_ranks(beside_nccl_without_gpu, 2)


def mesh(rank: int, world_size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    with smddp():
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        row, column = divmod(rank, 2)
        tensor = tagged(rank, 129)
        dist.all_reduce(tensor, group=grid.get_group("rows"))
        assert torch.equal(tensor, tagged(column, 129) + tagged(2 + column, 129))
        tensor = tagged(rank, 129)
        dist.all_reduce(tensor, group=grid.get_group("columns"))
        assert torch.equal(tensor, tagged(2 * row, 129) + tagged(2 * row + 1, 129))
        assert dist.get_backend(grid["rows"].get_group()) == "smddp"
        flat = grid["rows", "columns"]._flatten("all")
        tensor = tagged(rank, 3)
        dist.all_reduce(tensor, group=flat.get_group())
        assert torch.equal(tensor, torch.stack([tagged(r, 3) for r in range(4)]).sum(0))


def test_device_mesh_two_by_two() -> None:
    run_ranks(mesh, 4)


def before_init(rank: int, world_size: int) -> Any:
    import os

    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend
    from smdistributed.dataparallel.torch import get_local_rank, get_rank, get_world_size

    errors = [raised(function)[0] for function in (get_rank, get_world_size, get_local_rank)]
    del os.environ["RANK"]
    _, text, bases = raised(dist.init_process_group, "smddp")
    assert "ValueError" in bases
    assert "RANK expected, but not set" in text
    os.environ["RANK"] = str(rank)
    with smddp():
        assert (get_rank(), get_world_size(), get_local_rank()) == (rank, world_size, rank)
    return errors


def test_the_helpers_need_a_process_group() -> None:
    assert run_ranks(before_init, 2) == [["SMDDPNotInitialized"] * 3] * 2
