# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Stalled collectives of the `smddp` backend, and torch's `Join` as the remedy.

The same of the legacy `DistributedDataParallel` is in `test_legacy_ddp.py`.

Source: dataparallel specification, section 6.6.
"""

from __future__ import annotations

import re

import pytest
from harness import run_ranks
from machine_speed import scaled

from tests.conformance.dataparallel.stall_ranks import (
    gloo_timeout,
    joined_training,
    stalled,
    timeouts,
    waits_for_a_rank_that_never_starts,
)


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_6_6_the_variable_sets_when_a_stalled_collective_times_out(kind: str) -> None:
    (name, text, bases), _ = run_ranks(stalled, 2, kind, variable=str(scaled(2.0)))
    assert name == "SMDDPTimeoutError"
    assert "TimeoutError" in bases
    assert "SMDDPError" in bases
    assert f"{kind} #2 " in text, text  # the collective and its sequence number: #1 went well
    assert "on rank 0 of 2" in text, text  # this rank
    assert re.search(r"for rank 1\b", text), text  # who has not arrived
    assert "through with its batches, if the ranks have uneven numbers of them" in text, text
    assert "torch's Join context" in text, text


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_6_6_the_timeout_argument_goes_before_the_variable(kind: str) -> None:
    """With the variable's hundred minutes, the run would miss its deadline."""
    (name, text, _), _ = run_ranks(stalled, 2, kind, variable="6000", argument_s=scaled(2.0))
    assert name == "SMDDPTimeoutError"
    assert re.search(rf"{kind} #\d+", text), text


def test_6_6_the_argument_goes_before_the_variable_even_if_it_is_torchs_default() -> None:
    """Such an argument was once taken for one that nobody had named."""
    (found,) = run_ranks(timeouts, 1)
    assert found == {
        "smddp": [1800.0, 60.0],
        "SMDDP": [1800.0, 60.0],
        "cuda:nccl,cpu:smddp": [1800.0, 60.0],
        "new_group": [1800.0, 60.0],
        "legacy": [1800.0, 60.0],
    }


def test_6_6_the_variable_is_not_for_groups_of_other_backends() -> None:
    assert run_ranks(gloo_timeout, 1) == [1800.0]


def test_3_1_the_variable_limits_the_start_of_a_job_too() -> None:
    """Torch's own half an hour would miss the run's deadline."""
    (told,) = run_ranks(waits_for_a_rank_that_never_starts, 1, env={"WORLD_SIZE": "2"})
    assert told is not None
    assert "1/2 clients joined" in told[1], told


def test_6_6_join_with_torchs_ddp_ends_uneven_batches_with_equal_weights() -> None:
    first, second = run_ranks(joined_training, 2, (3, 5))
    assert (first["steps"], second["steps"]) == (3, 5)
    assert first["weights"] == second["weights"]  # bytes: equal to the last bit
    assert first["weights"] != first["initial weights"]
