# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps in which something goes wrong end on every rank, say why, and leave nothing behind.

Source: modelparallel specification, sections 3.12, 4.2 and 8.
"""

from __future__ import annotations

import functools
import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness import run_ranks
from machine_speed import scaled

RANKS = str(Path(__file__).with_name("failure_ranks.py"))
DEADLINE_S = 180.0
NAMES = [
    line.removeprefix("def ").split("(")[0]
    for line in Path(RANKS).read_text().splitlines()
    if line.startswith("def check_")
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@functools.cache
def _findings(ranks: int) -> dict[str, list[str]]:
    """By check, what each rank found wrong."""
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_ranks(
            f"{RANKS}:run_checks",
            ranks,
            NAMES,
            folder,
            check=False,
            deadline_s=DEADLINE_S,
        )
        for rank, outcome in enumerate(outcomes):
            path = Path(folder, f"rank{rank}.jsonl")
            for line in path.read_text().splitlines() if path.exists() else []:
                name, error = json.loads(line)
                found.setdefault(name, []).append(f"rank {rank}: {error}" if error else "")
            if not outcome.ok:
                found.setdefault("", []).append(f"{outcome.output[-3000:]}\n{outcome.stacks}")
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_fails(name: str, ranks: int) -> None:
    found = _findings(ranks)
    wrong = found.get(name, [])
    if len(wrong) < ranks:
        pytest.fail(f"{name} did not end on all ranks, or was not reached: {found.get('', [])}")
    assert not any(wrong), "\n".join(wrong)


def _outcomes(name: str, ranks: int, *args: Any, **env: str) -> list[Any]:
    return run_ranks(f"{RANKS}:{name}", ranks, *args, env=env, check=False, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_ends_the_step_everywhere(victim: int) -> None:
    for outcome in _outcomes("a_rank_is_killed", 3, victim):
        if outcome.rank == victim:
            assert outcome.exit_code == -signal.SIGKILL
            continue
        assert outcome.ok, outcome.output
        # Of half an hour is the timeout, which is another error and beyond the run's deadline.
        kind, text, _ = outcome.value
        assert kind in ("PeerLostError", "StepAborted"), text
        assert f"rank {victim}" in text


@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_ends_the_step_everywhere(victim: int) -> None:
    for outcome in _outcomes("a_rank_is_interrupted", 2, victim):
        assert outcome.ok, outcome.output
        (kind, text, _), left = outcome.value
        if outcome.rank == victim:
            assert kind == "KeyboardInterrupt", text
        else:
            assert kind in ("StepAborted", "PeerLostError", "AbortedError"), (kind, text)
            assert "nterrupt" in text
        assert not any(left.values()), left


@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_while_a_rank_waits(victim: int) -> None:
    for outcome in _outcomes("a_waiting_rank_is_interrupted", 3, victim):
        assert outcome.ok, outcome.output
        kind, text, _ = outcome.value
        if outcome.rank == victim:
            assert kind == "KeyboardInterrupt", text
        else:
            assert kind, "the step ended everywhere"


def test_a_step_on_one_rank_only_ends_with_the_timeout() -> None:
    first, second = _outcomes("one_rank_takes_no_step", 2, SMDDP_TIMEOUT_SECONDS=str(scaled(3.0)))
    assert second.ok, second.output
    assert first.ok, first.output
    kind, text, _ = first.value
    assert kind in ("SMPError", "TimeoutError", "SMDDPTimeoutError"), (kind, text)
    assert "rank 1" in text


def test_failed_steps_leave_no_memory_behind() -> None:
    for outcome in _outcomes("failures_leave_no_memory", 3):
        assert outcome.ok, outcome.output
        early, late = outcome.value
        assert late == early, f"rank {outcome.rank}: {early} tensors, then {late}"
