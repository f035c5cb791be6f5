# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A rank is killed in an evaluation, or while a checkpoint is saved (`lost_rank_ranks.py`)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from harness import free_port
from machine_speed import soon_s
from tensorflow_harness import run_tensorflow_ranks

RANKS = Path(__file__).with_name("lost_rank_ranks.py")
SOON_S = soon_s()
DEADLINE_S = 120.0
KERASES = [
    pytest.param("0", id="keras-3"),
    pytest.param("1", id="tf-keras", marks=pytest.mark.slow),
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _told(faults: list[str], survivors: list[int], folder: Path, keras: str) -> list[list[Any]]:
    """By fault, what those were told that live to the end; soon."""
    ports = [free_port() for _ in faults]
    variables = {"TEST_FOLDER": str(folder), "TF_USE_LEGACY_KERAS": keras}
    ranks = len(survivors) + len(faults)
    outcomes = run_tensorflow_ranks(
        f"{RANKS}:run_faults",
        ranks,
        faults,
        ports,
        env=variables,
        check=False,
        deadline_s=DEADLINE_S,
    )
    for rank, outcome in enumerate(outcomes):
        expected = 0 if rank in survivors else -signal.SIGKILL
        assert outcome.exit_code == expected, outcome
        assert outcome.ok or rank not in survivors, outcome
    told = [outcomes[rank].value for rank in survivors]
    return [list(each) for each in zip(*told, strict=True)]


def _require_told(told: list[Any], victim: int, *words: str) -> None:
    for kind, text, after_s in told:
        assert "SMDDPPeerLost" in (kind + text), told
        assert f"rank {victim} (host " in text, told
        assert [each for each in words if each not in text] == [], text
        assert after_s < SOON_S, told


@pytest.mark.parametrize("keras", KERASES)
def test_in_evaluate_and_while_it_sends_values_to_be_saved(tmp_path: Path, keras: str) -> None:
    evaluated, saved = _told(["evaluate", "sender_of_a_save"], [0], tmp_path, keras)
    _require_told(evaluated, 2, " compares the arguments of step Model.call(")
    _require_told(saved, 1, "manager.save(): ")


@pytest.mark.parametrize("keras", KERASES)
def test_in_an_evaluation_step_and_while_it_writes_what_is_saved(
    tmp_path: Path, keras: str
) -> None:
    evaluated, saved = _told(["evaluation_step", "writer_of_a_save"], [1], tmp_path, keras)
    _require_told(evaluated, 2, " runs step predict")
    _require_told(saved, 0, "manager.save(): ")
