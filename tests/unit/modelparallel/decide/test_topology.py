# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks and groups: the worked tables of the specification, section 2, and what is always true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.modelparallel.decide.topology import PLACEMENT_STRATEGIES, GroupKind, Topology
from smdistributed.modelparallel.exceptions import ConfigError

KINDS = tuple(GroupKind)


def _positions(topology: Topology, kind: GroupKind) -> str:
    return "".join(str(topology.rank_in(kind, rank)) for rank in range(topology.size))


@pytest.mark.parametrize(
    ("strategy", "mp_groups", "dp_groups", "mp_ranks", "dp_ranks"),
    [
        (
            "cluster",
            ((0, 1), (2, 3), (4, 5), (6, 7)),
            ((0, 2, 4, 6), (1, 3, 5, 7)),
            "01010101",
            "00112233",
        ),
        (
            "spread",
            ((0, 4), (1, 5), (2, 6), (3, 7)),
            ((0, 1, 2, 3), (4, 5, 6, 7)),
            "00001111",
            "01230123",
        ),
    ],
)
def test_eight_ranks_in_two_partitions(
    strategy: str,
    mp_groups: tuple[tuple[int, ...], ...],
    dp_groups: tuple[tuple[int, ...], ...],
    mp_ranks: str,
    dp_ranks: str,
) -> None:
    topology = Topology(8, pipeline_degree=2, strategy=strategy)
    assert topology.groups(GroupKind.MP) == mp_groups
    assert topology.groups(GroupKind.DP) == dp_groups
    assert _positions(topology, GroupKind.MP) == mp_ranks
    assert _positions(topology, GroupKind.DP) == dp_ranks


@pytest.mark.parametrize(
    ("strategy", "pp", "tp", "rdp", "mp", "dp"),
    [
        ("DPT", "00110011", "01010101", "00001111", "01230123", "01012323"),
        ("DTP", "01010101", "00110011", "00001111", "01230123", "00112233"),
        ("PDT", "00001111", "01010101", "00110011", "01012323", "01230123"),
        ("PTD", "00001111", "00110011", "01010101", "00112233", "01230123"),
        ("TDP", "01010101", "00001111", "00110011", "01012323", "00112233"),
        ("TPD", "00110011", "00001111", "01010101", "00112233", "01012323"),
    ],
)
def test_eight_ranks_along_three_axes(
    strategy: str, pp: str, tp: str, rdp: str, mp: str, dp: str
) -> None:
    topology = Topology(8, pipeline_degree=2, tensor_degree=2, strategy=strategy)
    kinds = (GroupKind.PP, GroupKind.TP, GroupKind.RDP, GroupKind.MP, GroupKind.DP)
    assert [_positions(topology, kind) for kind in kinds] == [pp, tp, rdp, mp, dp]


def test_sixteen_ranks_of_which_eight_share_each_module() -> None:
    topology = Topology(16, pipeline_degree=2, tensor_degree=8)
    assert [topology.coordinates(rank).pp for rank in range(16)] == [0] * 8 + [1] * 8
    assert [topology.coordinates(rank).tp for rank in range(16)] == [*range(8), *range(8)]


@pytest.mark.parametrize(("alias", "strategy"), [("cluster", "DPT"), ("spread", "TPD")])
def test_names_stand_for_permutations(alias: str, strategy: str) -> None:
    for kind in KINDS:
        named, spelled = (Topology(24, 3, 2, each).groups(kind) for each in (alias, strategy))
        assert named == spelled


@given(
    pipeline=st.integers(1, 5),
    tensor=st.integers(1, 5),
    data=st.integers(1, 5),
    strategy=st.sampled_from(PLACEMENT_STRATEGIES),
)
def test_what_is_true_of_every_mesh(pipeline: int, tensor: int, data: int, strategy: str) -> None:
    topology = Topology(pipeline * tensor * data, pipeline, tensor, strategy)
    sizes = {kind: topology.size_of(kind) for kind in KINDS}
    assert sizes[GroupKind.MP] * sizes[GroupKind.RDP] == topology.size
    assert sizes[GroupKind.PP] * sizes[GroupKind.DP] == topology.size
    for rank in range(topology.size):
        assert topology.rank_at(topology.coordinates(rank)) == rank
        at = topology.coordinates(rank)
        assert topology.rank_in(GroupKind.PP, rank) == at.pp
        assert topology.rank_in(GroupKind.TP, rank) == at.tp
        assert topology.rank_in(GroupKind.RDP, rank) == at.rdp
        assert topology.members(GroupKind.WORLD, rank) == tuple(range(topology.size))
    for kind in KINDS:
        groups = topology.groups(kind)
        assert all(len(group) == sizes[kind] for group in groups)
        assert sorted(rank for group in groups for rank in group) == list(range(topology.size))
        assert all(topology.members(kind, rank) == group for group in groups for rank in group)


def test_a_world_that_does_not_divide_is_refused_with_all_three_numbers() -> None:
    with pytest.raises(ConfigError, match=r"(?s)6 processes.*degree 2 .*degree 2;") as error:
        Topology(6, pipeline_degree=2, tensor_degree=2)
    assert "multiple of 4" in str(error.value)


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="must be a value in: ") as error:
        Topology(4, strategy="DP")
    for strategy in ("cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"):
        assert strategy in str(error.value)
