# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Our kernels in TensorFlow: what they compute, in every mode, and how they fail.

Source: dataparallel specification, sections 6 and 9.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from harness import run_script
from machine_speed import scaled
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

RANKS = Path(__file__).with_name("kernels_ranks.py")
CHECKS = Checks(RANKS)
# Three take another rank; the fourth has nothing to do with ranks, and takes seconds.
NOT_ALONE = {
    "check_operations_that_wait_long",
    "check_rows_that_cannot_be_joined",
    "check_operations_run_for_their_effect",
    "check_a_build_that_is_not_known",
}
ALONE = [name for name in CHECKS.names if name not in NOT_ALONE]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_kernels(name: str) -> None:
    CHECKS.require(name, 2)


@pytest.mark.parametrize("name", ALONE)
def test_kernels_on_one_rank(name: str) -> None:
    CHECKS.require(name, 1, ALONE)


def _run(name: str, *args: Any, check: bool = True, **env: str) -> list[Any]:
    return run_tensorflow_ranks(f"{RANKS}:{name}", 2, *args, env=env, check=check)


@pytest.mark.parametrize("in_graph", [False, True])
def test_shapes_that_differ_are_told_on_all_ranks(in_graph: bool) -> None:
    for text in _run("shapes_differ", in_graph):
        assert "SMDDPMismatch: all_reduce #1 (SUM, float32 x" in text
        assert "rank 0 called all_reduce (SUM, float32 x 10)" in text
        assert "rank 1 called all_reduce (SUM, float32 x 12)" in text
        assert "; in gradients 1 of 3" in text


def test_a_killed_rank_is_told() -> None:
    survivor, killed = _run("peer_is_killed", check=False)
    assert killed.exit_code == -signal.SIGKILL
    assert survivor.ok, survivor.output
    for text in survivor.value:
        assert "SMDDPPeerLost: all_reduce #" in text
        assert "rank 1" in text
        assert "; in gradients 1 of 3" in text
        assert "originally returned" not in text  # as TensorFlow does with some codes


def test_a_rank_that_does_not_come_is_a_timeout(tmp_path: Path) -> None:
    text, _ = _run("rank_is_late", str(tmp_path), SMDDP_TIMEOUT_SECONDS=str(scaled(2.0)))
    assert "SMDDPTimeoutError: all_reduce #2" in text
    assert "; in a sum" in text


@pytest.mark.fresh
def test_processes_end_cleanly() -> None:
    """Without shutdown(), with tensors that view shared memory, in the middle of a collective."""
    script = Path(__file__).with_name("exit_script.py")
    for outcome in run_script([str(script)], 2, deadline_s=DEADLINE_S):
        assert "at the end" in outcome.output
