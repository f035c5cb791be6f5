# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.init()` and `smp.reset()` on several ranks: the mesh, its groups, and what can go wrong.

Source: modelparallel specification, sections 1.1 and 2. A start of four processes takes seconds, so
one start serves many checks; the tables for eight are in tests/unit/modelparallel/torch.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import free_port, run_ranks, run_script

DEADLINE_S = 120.0
KINDS = ("WORLD", "MP", "DP", "PP", "TP", "RDP")

# Degrees and strategy -> of each kind the groups of four ranks, by their first member.
MESHES: list[tuple[dict[str, Any], dict[str, list[list[int]]]]] = [
    (
        {"pipeline_parallel_degree": 2, "placement_strategy": "spread"},
        {
            "WORLD": [[0, 1, 2, 3]],
            "MP": [[0, 2], [1, 3]],
            "PP": [[0, 2], [1, 3]],
            "DP": [[0, 1], [2, 3]],
            "RDP": [[0, 1], [2, 3]],
            "TP": [[0], [1], [2], [3]],
        },
    ),
    (
        {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2},
        {
            "WORLD": [[0, 1, 2, 3]],
            "MP": [[0, 1, 2, 3]],
            "PP": [[0, 2], [1, 3]],
            "DP": [[0, 1], [2, 3]],
            "RDP": [[0], [1], [2], [3]],
            "TP": [[0, 1], [2, 3]],
        },
    ),
]


LAUNCHER = {"partitions": 2, "microbatches": 8}


class Lines(logging.Handler):
    """What the library says in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        logging.getLogger("smdistributed").addHandler(self)
        logging.getLogger("smdistributed").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def at(self, level: int) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno >= level]


def check_mesh(rank: int, groups: dict[str, list[list[int]]]) -> None:
    """The rank functions, and every process group by an all_reduce of its members' numbers."""
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.decide.topology import GroupKind

    assert (smp.rank(), smp.size()) == (rank, 4)
    assert (smp.local_rank(), smp.local_size()) == (rank, 4)
    by_members: dict[tuple[int, ...], Any] = {}
    for name in KINDS:
        kind = GroupKind[name]
        [members] = [group for group in groups[name] if rank in group]
        assert list(smp.state.members(kind)) == members, name
        assert smp.state.rank_in(kind) == members.index(rank)
        group = smp.state.process_group(kind)
        assert dist.get_process_group_ranks(group) == members
        assert by_members.setdefault(tuple(members), group) is group, "one for the same members"
        tensor = torch.tensor([10**rank])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(10**member for member in members), name
        if name != "WORLD":
            assert getattr(smp, f"get_{name.lower()}_group")() == members
            assert getattr(smp, f"{name.lower()}_rank")() == members.index(rank)
            assert getattr(smp, f"{name.lower()}_size")() == len(members)
            assert getattr(smp, f"get_{name.lower()}_process_group")() is group
    assert smp.get_world_process_group() is dist.group.WORLD


def four_ranks(rank: int, world_size: int, port: int) -> dict[str, Any]:
    said = Lines()
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.exceptions import SMPNotInitialized

    try:
        smp.rank()
    except SMPNotInitialized as error:
        before = str(error)

    # What the launcher has said goes first.
    first, groups = MESHES[0]
    smp.init({**first, "pipeline_parallel_degree": 4, "microbatches": 3, "ddp": True})
    check_mesh(rank, groups)
    assert smp.num_microbatches() == 8
    smp.init({"microbatches": 1})
    assert smp.num_microbatches() == 8
    smp.reset()
    assert not smp.is_initialized()
    assert not dist.is_initialized()
    first_life = (said.at(logging.INFO), said.at(logging.WARNING))

    # Again, at a port of its own: rank 0 may have left the store before the others came.
    said.records.clear()
    second, groups = MESHES[1]
    smp.init({**second, "ddp": True, "ddp_port": port, "ddp_dist_backend": "nccl"})
    check_mesh(rank, groups)
    assert dist.get_backend() == "smddp"
    smp.barrier()
    return {"before": before, "first": first_life, "second": said.at(logging.WARNING)}


def test_four_ranks_live_twice() -> None:
    env = {"SM_HP_MP_PARAMETERS": json.dumps(LAUNCHER)}
    outcomes = run_ranks(four_ranks, 4, free_port(), env=env, deadline_s=DEADLINE_S)
    for rank, outcome in enumerate(outcomes):
        assert "smp.rank() was used before smp.init()" in outcome["before"]
        info, warnings = outcome["first"]
        assert ("Configuration parameters:" in info) == (rank == 0)
        assert ("  pipeline_parallel_degree: 2" in info) == (rank == 0)
        assert len(warnings) == (rank == 0)
        assert ["initialized already, ignoring" in line for line in warnings] == [True] * (
            rank == 0
        )
        told = ["there is no CUDA device here", "tensor_parallel_degree is 2, which has no effect"]
        assert len(outcome["second"]) == len(told) * (rank == 0)
        assert all(text in line for text, line in zip(told, outcome["second"], strict=False))


def refused(rank: int, world_size: int, ports: list[int]) -> list[str]:
    import smdistributed.modelparallel.torch as smp

    told = []

    def init_fails(**parameters: Any) -> None:
        try:
            smp.init(parameters)
        except ValueError as error:
            told.append(f"{type(error).__name__}: {error}")
        assert not smp.is_initialized()

    init_fails(pipeline_parallel_degree=2, ddp=True)
    assert not dist.is_initialized(), "before the ranks met"
    init_fails(pipeline_parallel_degree=1)
    init_fails(ddp=True, microbatches=4 if rank == 1 else 2)
    assert not dist.is_initialized(), "what was made is ended"
    smp.init({"pipeline_parallel_degree": 3, "ddp": True, "ddp_port": ports[0]})
    assert smp.pp_rank() == rank
    smp.reset()

    # A default group of the script's own, with ranks in an order of its own.
    own = (rank + 1) % 3
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{ports[1]}", rank=own, world_size=3
    )
    default = dist.group.WORLD
    smp.init({"ddp": True})
    assert (smp.rank(), smp.local_rank(), smp.local_size()) == (own, own, 3)
    assert smp.get_world_process_group() is default
    tensor = torch.tensor([1.0])
    dist.all_reduce(tensor, group=smp.get_tp_process_group())
    assert tensor.item() == 1
    smp.barrier()
    smp.reset()
    assert dist.group.WORLD is default
    dist.barrier()
    smp.init({"pipeline_parallel_degree": 3})  # over the store that stays
    assert smp.allgather(own, smp.PP_GROUP) == [0, 1, 2]
    smp.barrier()
    smp.reset()
    dist.destroy_process_group()
    return told


def test_what_cannot_work_is_refused_and_a_group_of_the_scripts_adopted() -> None:
    ports = [free_port(), free_port()]
    for told in run_ranks(refused, 3, ports, deadline_s=DEADLINE_S):
        size, ddp, differing = told
        assert (
            "3 processes cannot hold pipeline_parallel_degree 2 x tensor_parallel_degree 1" in size
        )
        assert "Set `ddp: True`" in ddp
        assert differing.startswith("ConfigError: microbatches is 4 on rank 1, and 2 on rank 0;")


_EXIT = """
import sys
import torch.distributed as dist
import smdistributed.modelparallel.torch as smp

smp.init({"pipeline_parallel_degree": 2})
how = sys.argv[1]
if how == "status":
    sys.exit(3)
if how == "destroyed":
    dist.destroy_process_group()
if how == "raises" and smp.rank() == 1:
    raise RuntimeError("on purpose")
if how == "raises":
    try:
        smp.recv_from(1, smp.WORLD_RANK)
    except ConnectionError:
        print("told", flush=True)
        sys.exit(4)
"""


@pytest.mark.fresh
def test_the_end_of_a_process_without_reset() -> None:
    for how, status in (("status", 3), ("destroyed", 0)):
        for outcome in run_script(["-c", _EXIT, how], 2, check=False, deadline_s=DEADLINE_S):
            assert (outcome.exit_code, outcome.output) == (status, ""), how


@pytest.mark.fresh
def test_a_rank_that_raises_ends_the_waiting_of_the_others() -> None:
    waits, raises = run_script(["-c", _EXIT, "raises"], 2, check=False, deadline_s=DEADLINE_S)
    assert (waits.exit_code, waits.output) == (4, "told\n")
    assert raises.exit_code == 1
    assert raises.output.rstrip().endswith("RuntimeError: on purpose")
