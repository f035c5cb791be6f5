# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Our kernels in TensorFlow: what they compute, in every mode, and how they fail.

TensorFlow is imported by the ranks only, once for all checks of one number of ranks.

Source: dataparallel specification, sections 6 and 9.
"""

from __future__ import annotations

import functools
import importlib.util
import signal
from pathlib import Path
from typing import Any

import pytest
from harness import run_ranks

RANKS = str(Path(__file__).with_name("kernels_ranks.py"))
DEADLINE_S = 110.0
NAMES = [
    line.removeprefix("def check_").split("(")[0]
    for line in Path(RANKS).read_text().splitlines()
    if line.startswith("def check_")
]

pytestmark = [
    pytest.mark.timeout(DEADLINE_S + 60),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
    ),
]


@functools.cache
def _findings(ranks: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = run_ranks(
        f"{RANKS}:run_checks", ranks, NAMES, deadline_s=DEADLINE_S
    )
    return found


def _run(name: str, *args: Any, check: bool = True, **env: str) -> list[Any]:
    return run_ranks(
        f"{RANKS}:{name}", 2, *args, env=env or None, check=check, deadline_s=DEADLINE_S
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_kernels(name: str, ranks: int) -> None:
    if ranks == 1 and name in ("rows_that_cannot_be_joined", "operations_run_for_their_effect"):
        pytest.skip("takes two ranks")
    assert [found[name] for found in _findings(ranks)] == [""] * ranks


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


def test_a_rank_that_does_not_come_is_a_timeout() -> None:
    text, _ = _run("rank_is_late", SMDDP_TIMEOUT_SECONDS="2")
    assert "SMDDPTimeoutError: all_reduce #2" in text
    assert "; in a sum" in text


@pytest.mark.parametrize("how", ["idle", "pending"])
def test_processes_end_cleanly(how: str) -> None:
    """Without shutdown(), with tensors that view shared memory, in the middle of a collective."""
    for status, output in _run("exit_script", how):
        assert status == 0, output
        assert "at the end" in output
