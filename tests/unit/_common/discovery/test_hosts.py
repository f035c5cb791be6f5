# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Numbering within hosts from the identities of all ranks."""

import dataclasses

import pytest

from smdistributed._common.discovery import Membership, complete_membership, host_identity

UNKNOWN = Membership(0, 5, None, None, None, None, "m", 1, "pmi")


def test_ranks_of_a_host_are_numbered_by_ascending_rank() -> None:
    # A cyclic distribution: rank modulo size would be wrong for ranks 2, 3 and 4.
    identities = ["b", "a", "b", "a", "b"]
    completed = [
        complete_membership(dataclasses.replace(UNKNOWN, rank=rank), identities)
        for rank in range(5)
    ]
    assert [one.local_rank for one in completed] == [0, 0, 1, 1, 2]
    assert [one.local_world_size for one in completed] == [3, 2, 3, 2, 3]
    assert [one.node_rank for one in completed] == [0, 1, 0, 1, 0]
    assert {one.num_nodes for one in completed} == {2}


def test_what_a_launcher_said_stays() -> None:
    given = dataclasses.replace(UNKNOWN, local_rank=3, node_rank=9)
    completed = complete_membership(given, ["a"] * 5)
    assert (completed.local_rank, completed.local_world_size) == (3, 5)
    assert (completed.node_rank, completed.num_nodes) == (9, 1)


def test_a_wrong_number_of_identities_is_refused() -> None:
    with pytest.raises(ValueError, match="got 4 host identities for world_size=5"):
        complete_membership(UNKNOWN, ["a"] * 4)


def test_identity_is_stable_and_follows_sagemaker() -> None:
    assert host_identity({}) == host_identity({})
    assert host_identity({"SM_CURRENT_HOST": "algo-1"}) != host_identity({})
    assert host_identity({"SM_CURRENT_HOST": "algo-1"}) == "sagemaker:algo-1"
