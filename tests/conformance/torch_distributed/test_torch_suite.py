# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch's own distributed test-suite against `smddp`.

By default a cross-section with 2 ranks. All of it, with 2, 3 and 8 ranks:

    TORCH_SUITE=full pytest tests/conformance/torch_distributed

The suite runs once per world size, in a process of its own; each of its tests is one test here.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

from expected import ANY_SIZE, EIGHT_RANKS, EXCLUDED, FAST, expected  # noqa: E402 -- beside this file

_FULL = os.environ.get("TORCH_SUITE", "fast") == "full"
_DEADLINE_S = 1200


def _cases() -> list[tuple[int, str]]:
    if _FULL:
        return [(size, name) for size in (2, 3, 8) for name in expected(size)]
    return [(2, name) for name in FAST]


@functools.cache
def _outcomes(world_size: int) -> dict[str, dict[str, Any]]:
    names = [name for size, name in _cases() if size == world_size]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, str(_HERE / "run_suite.py"), "--backend", "smddp"]
        command += ["--world-size", str(world_size), "--json", str(results), "--only", *names]
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=scaled(_DEADLINE_S),
        )
        assert results.exists(), done.stdout[-4000:]
        outcomes: dict[str, dict[str, Any]] = json.loads(results.read_text())
        return outcomes


@pytest.mark.timeout(_DEADLINE_S + 60)
@pytest.mark.parametrize(("world_size", "name"), _cases())
def test_torch_suite(world_size: int, name: str) -> None:
    outcome = _outcomes(world_size)[name]
    assert outcome["status"] == "passed", outcome["reason"]


def test_the_lists_hold_what_they_say() -> None:
    assert len(ANY_SIZE) == 91
    assert len(EIGHT_RANKS) == 21
    assert not set(ANY_SIZE) & set(EIGHT_RANKS)
    assert set(EXCLUDED) <= set(ANY_SIZE + EIGHT_RANKS)
    assert set(FAST) <= set(expected(2))
    assert len(expected(2)) == 88
    assert len(expected(8)) == 107
