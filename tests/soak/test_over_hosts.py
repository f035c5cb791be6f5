# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The soak over hosts for a few rounds, and that it would notice what it looks for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from launchers import run_to_end

from tests.multihost.namespaces import why_not
from tests.soak.over_hosts.driver import Options, Soak, SoakFailed
from tests.soak.over_hosts.faults import KINDS, Fault, draw

ROOT = Path(__file__).resolve().parents[2]
needs_hosts = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def soak(*options: str) -> tuple[int, str]:
    """Exit status and output of `tests.soak.over_hosts`."""
    command = [sys.executable, "-m", "tests.soak.over_hosts", *options]
    ended = run_to_end(command, folder=ROOT, timeout_s=110.0)
    return ended.returncode, ended.stdout


@pytest.mark.multihost
@needs_hosts
def test_a_few_rounds_pass() -> None:
    """Faults that take seconds at most: one that ends a rank, two of usage, two that heal."""
    faults = ["blink", "killed", "abort", "mismatch", "strangers"]
    status, output = soak("--rounds", "5", "--seed", "3", "--faults", *faults)
    assert status == 0, output
    assert "soak passed" in output
    assert "5 rounds in" in output


def test_faults_depend_on_seed_and_round_alone() -> None:
    kinds = list(KINDS)
    drawn = [draw(1, number, (2, 4), kinds) for number in range(300)]
    assert drawn == [draw(1, number, (2, 4), kinds) for number in range(300)]
    assert drawn != [draw(2, number, (2, 4), kinds) for number in range(300)]
    assert {fault.kind for fault in drawn} == set(kinds)
    assert {fault.victim for fault in drawn} == {0, 1, 2, 3}
    for fault in drawn:
        low, high = KINDS[fault.kind].lasts_s
        assert low <= fault.lasts_s <= high


class _Process:
    """As much of a rank as a judgement needs."""

    def __init__(self, rank: int) -> None:
        self.rank, self.host, self.pid = rank, _Host(rank // 2), 1000 + rank


class _Host:
    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"host-{index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Host) and other.index == self.index

    def __hash__(self) -> int:
        return self.index


def _judge(kind: str, answers: dict[int, list[dict[str, Any]]]) -> None:
    options = Options(0.0, 1, 0, 1, [kind], [2, 2], {})
    judge: Any = Soak([], options, Path())
    judge._ranks = [_Process(rank) for rank in range(4)]
    fault = Fault(kind, host=0, victim=1, delay_s=0.0, lasts_s=0.0, gbit=1.0)
    judge._judge(fault, kind, {rank: {"ended": ended} for rank, ended in answers.items()})


RIGHT = {"error": None, "module": "", "text": "", "at": 0.0}


def _lost(text: str, module: str = "smdistributed.dataparallel.exceptions") -> dict[str, Any]:
    return {"error": "SMDDPPeerLost", "module": module, "text": text, "at": 0.0}


def test_right_results_and_named_culprits_are_accepted() -> None:
    _judge("calm", {rank: [RIGHT, RIGHT] for rank in range(4)})
    named = [_lost("rank 1 (host host-0, pid 1001) died")]
    _judge("killed", {0: named, 2: named, 3: named})
    silent = "rank 2 (host host-1, pid 1002) 10.77.0.2:1 has not answered for some 10 s"
    other = "rank 0 (host host-0, pid 1000) 10.77.0.1:1 has not answered for some 10 s"
    _judge("cut", {0: [_lost(silent)], 1: [_lost(silent)], 2: [_lost(other)], 3: [_lost(other)]})


@pytest.mark.parametrize(
    ("kind", "ended", "words"),
    [
        ("calm", [_lost("rank 1 (host host-0, pid 1001) died")], "right results were expected"),
        ("killed", [RIGHT, RIGHT], "an error was expected"),
        ("killed", [_lost("rank 2 (host host-1, pid 1002) died")], "nobody, or the wrong one"),
        ("killed", [_lost("rank 1 (host host-0, pid 1001)", "builtins")], "of this library"),
        # Of its own host it hears nothing.
        ("cut", [_lost("rank 0 (host host-0, pid 1000) has not answered")], "the wrong one"),
    ],
)
def test_anything_else_is_not(kind: str, ended: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(SoakFailed, match=words):
        _judge(kind, {0: ended})
