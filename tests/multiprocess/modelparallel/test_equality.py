# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A partitioned model is the unpartitioned one: losses, results, gradients, buffers, memory.

Tolerance: 1e-6 of the largest element of each tensor in float32 (equality_ranks.py). One job for
each number of ranks runs all its cases; each case is a test.

Source: modelparallel specification, sections 3.3 to 3.10, 5 and 8.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import pytest
from harness import run_ranks
from preloaded import Preload

from smdistributed.modelparallel.decide.schedules import SCHEDULES
from tests.multiprocess.modelparallel.architectures import ARCHITECTURES
from tests.multiprocess.modelparallel.equality_ranks import Case

RANKS = str(Path(__file__).with_name("equality_ranks.py"))
DEADLINE_S = 300.0

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)

# Each model where most calls are remote, and where few are; numbers of microbatches and schedules
# in turn, so that all of them meet chains, skips, reuse, states and recomputation.
_MICROBATCHES = (4, 1, 2, 3, 8, 5, 6, 7)
_PIPELINES = tuple(SCHEDULES)


def _covering(partitions: int, names: list[str], placements: tuple[str, ...]) -> list[Case]:
    return [
        Case(
            name,
            partitions,
            _MICROBATCHES[(number + shift) % len(_MICROBATCHES)],
            placement,
            _PIPELINES[(number + shift) % len(_PIPELINES)],
        )
        for number, name in enumerate(names)
        for shift, placement in enumerate(placements)
    ]


_MOST = [
    *("mlp", "resnet", "unet", "gpt", "bert", "t5", "hf_gpt2", "lstm", "reuse", "nested"),
    *("control_flow", "branches", "packed_arguments", "unused", "in_place", "checkpoint_around"),
    *("teacher", "experts"),
]
_HYBRID = ["mlp", "cnn_batchnorm", "gpt", "bert", "lstm", "reuse", "unused", "frozen", "autocast"]

# By number of ranks. With four, two partitions are two replicas.
CASES: dict[int, list[Case]] = {
    1: _covering(1, ["gpt", "cnn_batchnorm", "packed_arguments", "unused"], ("auto",)),
    2: _covering(2, list(ARCHITECTURES), ("auto", "alternating")),
    3: _covering(3, _MOST, ("alternating",)) + _covering(3, ["gpt", "unet"], ("auto",)),
    4: _covering(4, _MOST[::2], ("alternating",))
    + _covering(4, ["resnet", "gpt"], ("auto", "contiguous"))
    + _covering(2, _HYBRID, ("auto",))
    + _covering(2, ["gpt", "mlp"], ("contiguous",)),
}

EVERYTHING: dict[tuple[int, int], list[Case]] = {
    (ranks, partitions): [
        Case(name, partitions, microbatches, placement, pipeline)
        for name in ARCHITECTURES
        for microbatches in (1, 2, 3, 8)
        for placement in ("auto", "alternating", "contiguous")
        for pipeline in _PIPELINES
    ]
    for ranks, partitions in ((1, 1), (2, 2), (3, 3), (4, 4), (4, 2))
}


@functools.cache
def _findings(ranks: int) -> dict[str, list[str]]:
    return findings_of(ranks, CASES[ranks], DEADLINE_S)


def findings_of(
    ranks: int, cases: list[Case], deadline_s: float, device: str = "cpu"
) -> dict[str, list[str]]:
    """By case, what each rank found wrong; a case that was not run is not in it."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_ranks(
            f"{RANKS}:run_cases",
            ranks,
            cases,
            folder,
            device,
            check=False,
            deadline_s=deadline_s,
            preload=Preload.TRAINERS,
        )
        found: dict[str, list[str]] = {}
        for rank, outcome in enumerate(outcomes):
            path = Path(folder, f"rank{rank}.jsonl")
            lines = path.read_text().splitlines() if path.exists() else []
            for line in lines:
                name, error = json.loads(line)
                found.setdefault(name, []).append(f"rank {rank}: {error}" if error else "")
            if not outcome.ok:
                found.setdefault("", []).append(f"{outcome.output[-3000:]}\n{outcome.stacks}")
    return found


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        pytest.param(ranks, case, id=f"{ranks}r-{case}")
        for ranks, cases in CASES.items()
        for case in cases
    ],
)
def test_equals_the_unpartitioned_model(ranks: int, case: Case) -> None:
    require_nothing_wrong(_findings(ranks), ranks, case)


def require_nothing_wrong(found: dict[str, list[str]], ranks: int, case: Case) -> None:
    wrong = found.get(str(case), [])
    if len(wrong) < ranks:
        pytest.fail(f"{case} did not end on all ranks, or was not reached: {found.get('', [])}")
    assert not any(wrong), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(7300)
@pytest.mark.parametrize(("ranks", "partitions"), EVERYTHING)
def test_full_cross_product(ranks: int, partitions: int) -> None:
    cases = EVERYTHING[ranks, partitions]
    found = findings_of(ranks, cases, 7200.0)
    wrong = [f"{name}: {text}" for name, texts in found.items() for text in texts if text]
    assert not wrong, "\n".join(wrong)
    assert len(found) == len(cases)
