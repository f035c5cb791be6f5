# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpointed modules on several ranks: the same results, less memory (checkpointing_ranks.py).

One job for each number of ranks runs all its cases; each case is a test.

Source: modelparallel specification, section 6.4.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from harness import run_ranks
from preloaded import Preload

from tests.multiprocess.modelparallel.checkpointing_ranks import CASES

RANKS = str(Path(__file__).with_name("checkpointing_ranks.py"))
DEADLINE_S = 110.0


@functools.cache
def _findings(ranks: int) -> list[dict[str, str]]:
    return run_ranks(f"{RANKS}:run_cases", ranks, deadline_s=DEADLINE_S, preload=Preload.TRAINERS)


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        pytest.param(ranks, case.__name__, id=f"{ranks}r-{case.__name__}")
        for ranks, cases in CASES.items()
        for case in cases
    ],
)
def test_checkpoints(ranks: int, case: str) -> None:
    wrong = [
        f"rank {rank}: {each[case]}" for rank, each in enumerate(_findings(ranks)) if each[case]
    ]
    assert not wrong, "\n".join(wrong)
