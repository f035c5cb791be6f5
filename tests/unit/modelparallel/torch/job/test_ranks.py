# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The functions that say who is where, on the tables of the specification, section 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import SMPNotInitialized
from smdistributed.modelparallel.torch.job import ranks
from smdistributed.modelparallel.torch.job.state import Job, state

GROUPS: dict[GroupKind, Any] = {kind: object() for kind in GroupKind}


@contextlib.contextmanager
def as_rank(rank: int, size: int = 8, **parameters: Any) -> Iterator[None]:
    """This process as one rank of a job, without its groups."""
    config = Config.parse({"ddp": True, **parameters}, {})
    job = Job(
        config=config,
        topology=config.topology(size),
        rank=rank,
        local_rank=rank % 4,
        local_size=4,
        device=torch.device("cpu"),
        groups=GROUPS,
        message_group=GROUPS[GroupKind.WORLD],
    )
    state.reset()
    state.enter(job, contextlib.ExitStack())
    try:
        yield
    finally:
        state.reset()


def answers(function: Any, **parameters: Any) -> list[Any]:
    """What all of eight ranks answer."""
    found = []
    for rank in range(8):
        with as_rank(rank, **parameters):
            found.append(function())
    return found


# Strategy, MP groups, DP groups, mp_rank and dp_rank of ranks 0 to 7.
WITHOUT_TENSOR_PARALLELISM = [
    (
        "cluster",
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0, 2, 4, 6], [1, 3, 5, 7]],
        "01010101",
        "00112233",
    ),
    (
        "spread",
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        "00001111",
        "01230123",
    ),
]


@pytest.mark.parametrize(
    ("strategy", "mp_groups", "dp_groups", "mp_ranks", "dp_ranks"), WITHOUT_TENSOR_PARALLELISM
)
def test_the_table_without_tensor_parallelism(
    strategy: str,
    mp_groups: list[list[int]],
    dp_groups: list[list[int]],
    mp_ranks: str,
    dp_ranks: str,
) -> None:
    given = {"pipeline_parallel_degree": 2, "placement_strategy": strategy}
    for rank in range(8):
        with as_rank(rank, **given):
            assert smp.rank() == rank
            assert smp.get_mp_group() == next(group for group in mp_groups if rank in group)
            assert smp.get_pp_group() == smp.get_mp_group()
            assert smp.get_dp_group() == next(group for group in dp_groups if rank in group)
            assert smp.get_rdp_group() == smp.get_dp_group()
            assert smp.get_tp_group() == [rank]
            assert (smp.size(), smp.mp_size(), smp.pp_size(), smp.dp_size()) == (8, 2, 2, 4)
            assert (smp.rdp_size(), smp.tp_size(), smp.tp_rank()) == (4, 1, 0)
    assert answers(smp.mp_rank, **given) == answers(smp.pp_rank, **given) == [*map(int, mp_ranks)]
    assert answers(smp.dp_rank, **given) == answers(smp.rdp_rank, **given) == [*map(int, dp_ranks)]


# Strategy; pp, tp, rdp, mp and dp rank of ranks 0 to 7.
WITH_TENSOR_PARALLELISM = [
    ("DPT", "00110011", "01010101", "00001111", "01230123", "01012323"),
    ("cluster", "00110011", "01010101", "00001111", "01230123", "01012323"),
    ("DTP", "01010101", "00110011", "00001111", "01230123", "00112233"),
    ("PDT", "00001111", "01010101", "00110011", "01012323", "01230123"),
    ("PTD", "00001111", "00110011", "01010101", "00112233", "01230123"),
    ("TDP", "01010101", "00001111", "00110011", "01012323", "00112233"),
    ("TPD", "00110011", "00001111", "01010101", "00112233", "01012323"),
    ("spread", "00110011", "00001111", "01010101", "00112233", "01012323"),
]


@pytest.mark.parametrize(("strategy", "pp", "tp", "rdp", "mp", "dp"), WITH_TENSOR_PARALLELISM)
def test_the_table_of_two_by_two_by_two(
    strategy: str, pp: str, tp: str, rdp: str, mp: str, dp: str
) -> None:
    given = {
        "pipeline_parallel_degree": 2,
        "tensor_parallel_degree": 2,
        "placement_strategy": strategy,
    }
    functions = (smp.pp_rank, smp.tp_rank, smp.rdp_rank, smp.mp_rank, smp.dp_rank)
    for function, expected in zip(functions, (pp, tp, rdp, mp, dp), strict=True):
        assert answers(function, **given) == [*map(int, expected)], function.__name__
    for size, expected_size in (
        (smp.pp_size, 2),
        (smp.tp_size, 2),
        (smp.rdp_size, 2),
        (smp.mp_size, 4),
        (smp.dp_size, 4),
    ):
        assert answers(size, **given) == [expected_size] * 8
    for group, position in (
        (smp.get_pp_group, smp.pp_rank),
        (smp.get_tp_group, smp.tp_rank),
        (smp.get_rdp_group, smp.rdp_rank),
        (smp.get_mp_group, smp.mp_rank),
        (smp.get_dp_group, smp.dp_rank),
    ):
        for rank in range(8):
            with as_rank(rank, **given):
                assert group()[position()] == rank


def test_the_place_on_the_host_and_the_microbatches() -> None:
    with as_rank(6, pipeline_parallel_degree=2, microbatches=3):
        assert (smp.local_rank(), smp.local_size(), smp.num_microbatches()) == (2, 4, 3)


def test_lists_are_the_callers_own() -> None:
    with as_rank(0, pipeline_parallel_degree=2):
        smp.get_dp_group().clear()
        assert smp.get_dp_group() == [0, 2, 4, 6]


def test_each_process_group_is_that_of_its_kind() -> None:
    with as_rank(0):
        assert smp.get_world_process_group() is GROUPS[GroupKind.WORLD]
        assert smp.get_mp_process_group() is GROUPS[GroupKind.MP]
        assert smp.get_dp_process_group() is GROUPS[GroupKind.DP]
        assert smp.get_pp_process_group() is GROUPS[GroupKind.PP]
        assert smp.get_tp_process_group() is GROUPS[GroupKind.TP]
        assert smp.get_rdp_process_group() is GROUPS[GroupKind.RDP]


@pytest.mark.parametrize("name", ranks.__all__)
def test_before_init_each_says_that_init_comes_first(name: str) -> None:
    state.reset()
    with pytest.raises(SMPNotInitialized, match=rf"smp.{name}\(\) .*Call smp.init\(config\) first"):
        getattr(smp, name)()
