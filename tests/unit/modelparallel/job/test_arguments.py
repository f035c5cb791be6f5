# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks arguments mean (specification, section 4.7)."""

from __future__ import annotations

from typing import Any

import pytest

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind, Topology
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.job.arguments import CommGroup, RankType, kind_of, peer
from smdistributed.modelparallel.job.state import BaseJob

# Ranks 0 to 3; MP groups are (0, 1) and (2, 3).
JOB = BaseJob(config=Config(), topology=Topology(4, 2), rank=2, local_rank=2, local_size=4)


def test_each_name_means_its_kind() -> None:
    for kind in GroupKind:
        (group,) = (each for each in CommGroup if each.value is kind)
        (rank_type,) = (each for each in RankType if each.value is kind)
        assert kind_of(group, CommGroup, "f()", "group") is kind
        assert kind_of(rank_type, RankType, "f()", "rank_type") is kind


@pytest.mark.parametrize("given", [None, "WORLD", 0, [0, 1], GroupKind.MP, RankType.MP_RANK])
def test_other_things_are_no_group(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"f\(\) got group=.*expected a member of smp.CommGroup"):
        kind_of(given, CommGroup, "f()", "group")


@pytest.mark.parametrize(
    ("given", "rank_type", "expected"),
    [
        (0, RankType.WORLD_RANK, 0),
        (3, RankType.WORLD_RANK, 3),
        (1, RankType.MP_RANK, 3),
        (1, RankType.PP_RANK, 3),
        (0, RankType.DP_RANK, 0),
        (False, RankType.DP_RANK, 0),
    ],
)
def test_a_rank_and_what_it_counts(given: Any, rank_type: RankType, expected: int) -> None:
    assert peer(JOB, given, rank_type, "f()", "dest_rank") == expected


@pytest.mark.parametrize(
    ("given", "rank_type", "words"),
    [
        (2, RankType.WORLD_RANK, r"which is rank 2 itself; expected another rank"),
        (0, RankType.MP_RANK, r"which is rank 2 itself"),
        (0, RankType.TP_RANK, r"which is rank 2 itself"),
        (4, RankType.WORLD_RANK, r"got dest_rank=4; expected an integer from 0 to 3"),
        (-1, RankType.WORLD_RANK, r"got dest_rank=-1"),
        (2, RankType.MP_RANK, r"from 0 to 1, as rank 2 counts 2 ranks by smp.MP_RANK.*\[2, 3\]"),
        (1.0, RankType.WORLD_RANK, r"got dest_rank=1.0; expected an integer"),
        ("0", RankType.WORLD_RANK, r"got dest_rank='0'"),
        (None, RankType.WORLD_RANK, r"got dest_rank=None"),
        (0, CommGroup.WORLD, r"got rank_type=.*expected a member of smp.RankType"),
    ],
)
def test_ranks_that_there_are_not(given: Any, rank_type: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        peer(JOB, given, rank_type, "f()", "dest_rank")
