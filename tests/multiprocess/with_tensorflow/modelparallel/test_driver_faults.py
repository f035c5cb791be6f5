# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks are told when one of them dies, stops, leaves or is interrupted in a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled, soon_s
from tensorflow_harness import run_tensorflow_ranks

RANKS = Path(__file__).with_name("driver_fault_ranks.py")
NUM_RANKS = 3
VICTIM = 1
OTHERS = (0, 2)
SOON_S = soon_s()
DEADLINE_S = 60.0

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)
both_ways = pytest.mark.parametrize("is_in_graph", [False, True], ids=["eager", "graph"])


def _told(
    fault: str, is_in_graph: bool, timeout_s: float = 60.0, survivors: Sequence[int] = OTHERS
) -> list[Any]:
    outcomes = run_tensorflow_ranks(
        f"{RANKS}:run_fault",
        NUM_RANKS,
        fault,
        is_in_graph,
        env={"SMDDP_TIMEOUT_SECONDS": str(timeout_s)},
        check=False,
        deadline_s=DEADLINE_S,
    )
    told = [outcome.value for outcome in outcomes]
    for rank in survivors:
        assert told[rank] is not None, outcomes[rank]
        assert told[rank]["threads"] == []
    return told


def _require_class(told: Any, name: str, is_in_graph: bool) -> None:
    assert f"{name}: " in told["text"] if is_in_graph else told["type_name"] == name, told


@both_ways
def test_a_killed_rank_is_named(is_in_graph: bool) -> None:
    told = _told("killed", is_in_graph)
    for rank in OTHERS:
        _require_class(told[rank], "SMDDPPeerLost", is_in_graph)
        assert "rank 1 (host" in told[rank]["text"], told
        assert told[rank]["after_s"] < SOON_S, told


@both_ways
def test_a_rank_that_has_left_is_named(is_in_graph: bool) -> None:
    told = _told("left", is_in_graph)
    for rank in OTHERS:
        _require_class(told[rank], "SMDDPPeerLost", is_in_graph)
        assert "rank 1 (host" in told[rank]["text"], told
        assert told[rank]["after_s"] < SOON_S, told


@both_ways
def test_ctrl_c_in_a_step(is_in_graph: bool) -> None:
    told = _told("interrupted", is_in_graph)
    assert "KeyboardInterrupt" in told[0]["type_name"] + told[0]["text"], told
    assert told[0]["after_s"] < SOON_S, told
    for rank in (1, 2):
        _require_class(told[rank], "StepAborted", is_in_graph)
        assert "rank 0 (partition 0, host" in told[rank]["text"], told
        assert "KeyboardInterrupt" in told[rank]["text"], told


def test_ctrl_c_where_a_rank_waits_for_the_others_to_end_the_step() -> None:
    """Rank 0 hears that all have run their lists before it hears of the interrupt."""
    told = _told("interrupted_at_the_end", False)
    assert told[VICTIM]["type_name"] == "KeyboardInterrupt", told
    for rank in OTHERS:
        assert told[rank]["type_name"] == "", "the step has ended on some ranks only"


def test_a_stopped_rank_is_named_after_the_timeout() -> None:
    """Also by a rank that waits for another one, which waits for the stopped one."""
    timeout_s = scaled(1.5)
    told = _told("stopped", True, timeout_s, survivors=(0, 1))
    for rank in (0, 1):
        assert "Of rank 2 (partition 2, host" in told[rank]["text"], told
        assert "Of rank 1" not in told[rank]["text"], told
        assert timeout_s <= told[rank]["after_s"] < timeout_s + SOON_S, told
    classes = [each["type_name"] + each["text"] for each in told[:2]]
    assert any("SMDDPTimeoutError" in each for each in classes), told
