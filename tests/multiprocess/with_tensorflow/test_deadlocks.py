# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives keep the order of the program on all ranks, however few threads TensorFlow has.

Source: dataparallel specification, sections 7.3 to 7.5 and 12.8.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness import free_port, run_ranks

from tests.multiprocess.with_tensorflow.deadlock_ranks import Setting, reference

RANKS = Path(__file__).with_name("deadlock_ranks.py")
NUM_RANKS = 4
DEADLINE_S = 600.0  # a deadlock is found by the timeout of a collective
SETTINGS = [
    Setting("kernels", 1, 1, steps=1000),
    Setting("kernels", 2, 1, steps=1000),
    Setting("kernels", 8, 2, steps=1000),
    Setting("python", 1, 1, steps=300),
    Setting("python", 8, 2, steps=300),
]
NAMES = [
    line.removeprefix("def check_").split("(")[0]
    for line in RANKS.read_text().splitlines()
    if line.startswith("def check_")
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 30)


@functools.cache
def _findings() -> tuple[dict[tuple[str, str], list[Any]], str]:
    """By setting and check, what was wrong on each rank and what it returned; the ranks' output."""
    found: dict[tuple[str, str], list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_ranks(
            f"{RANKS}:run_settings",
            NUM_RANKS,
            SETTINGS,
            [free_port() for _ in SETTINGS],
            NAMES,
            folder,
            env={"SMDDP_BUCKET_CAP_MB": "0.00390625", "SMDDP_TIMEOUT_SECONDS": "30"},
            check=False,
            deadline_s=DEADLINE_S,
        )
        for path in Path(folder).iterdir():
            for line in path.read_text().splitlines():
                name, *result = json.loads(line)
                found.setdefault((path.stem, name), []).append(result)
    return found, "\n".join(each.output[-2000:] + each.stacks for each in outcomes)


def _returned(setting: Setting, name: str) -> list[Any]:
    found, output = _findings()
    results = found.get((setting.name, name), [])
    wrong = [error for error, _, _ in results if error]
    if wrong or len(results) < NUM_RANKS:
        missing = NUM_RANKS - len(results)
        pytest.fail("\n".join([f"{missing} ranks did not come to an end", *wrong, output]))
    return [value for _, value, _ in results]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_collectives_in_the_order_of_the_program(setting: Setting, name: str) -> None:
    _returned(setting, name)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_training_of_many_steps(setting: Setting) -> None:
    results = _returned(setting, "training")
    assert len({digest for digest, _, _ in results}) == 1, "the same bits on all ranks"
    norm, losses = reference(NUM_RANKS, setting.steps)
    for _, found_norm, found_losses in results:
        assert found_norm == pytest.approx(norm, rel=1e-4)
        assert found_losses == pytest.approx(losses, rel=1e-4)
