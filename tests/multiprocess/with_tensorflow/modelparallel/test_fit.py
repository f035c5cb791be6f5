# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training by Keras' own loops, of a model whose parts are on several ranks.

Source: TensorFlow modelparallel specification, section 5.4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled, soon_s
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("fit_ranks.py"))
FAULTS = Path(__file__).with_name("fit_fault_ranks.py")
REPLICAS = "check_replicas_train_as_one"
OF_PIPELINES = [name for name in CHECKS.names if name != REPLICAS]
AS_PLAIN = "check_fit_is_as_plain_keras"
OWN_STEP = "check_a_train_step_of_the_scripts"
SOON_S = soon_s()

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", OF_PIPELINES)
def test_fit(name: str) -> None:
    CHECKS.require(name, 2, OF_PIPELINES)


@pytest.mark.parametrize("name", [AS_PLAIN, OWN_STEP])
def test_fit_by_tf_keras(name: str) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1", "SMP_TEST_STEPS_PER_EXECUTION": "2"}
    CHECKS.require(name, 2, [AS_PLAIN, OWN_STEP], **env)


def test_replicas() -> None:
    CHECKS.require(REPLICAS, 2, [REPLICAS], SMP_TEST_PARTITIONS="1")


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PIPELINES)
def test_all_of_fit_by_tf_keras(name: str) -> None:
    CHECKS.require(name, 2, OF_PIPELINES, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "momentum"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("is_legacy", [0, 1])
def test_fit_in_all_ways(is_legacy: int, ranks: int, optimizer: str, steps: int) -> None:
    env = {"TF_USE_LEGACY_KERAS": str(is_legacy), "SMP_TEST_OPTIMIZER": optimizer}
    env["SMP_TEST_STEPS_PER_EXECUTION"] = str(steps)
    CHECKS.require(AS_PLAIN, ranks, [AS_PLAIN], **env)


@pytest.mark.parametrize("is_legacy", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_two_replicas_of_two_partitions(is_legacy: int) -> None:
    CHECKS.require(REPLICAS, 4, [REPLICAS], TF_USE_LEGACY_KERAS=str(is_legacy))


def _told(faults: list[str], ranks: int, **env: str) -> list[list[Any]]:
    """By fault, what each rank was told; of a rank that is killed, nothing."""
    outcomes = run_tensorflow_ranks(
        f"{FAULTS}:run_faults",
        ranks,
        faults,
        2,
        env={"SMDDP_TIMEOUT_SECONDS": str(scaled(60.0)), **env},
        check=False,
        deadline_s=DEADLINE_S,
    )
    survivors = [each for rank, each in enumerate(outcomes) if "killed" not in faults or rank != 1]
    for each in survivors:
        assert each.ok, each
    by_fault = zip(*(each.value for each in survivors), strict=True)
    # Either each rank knows what all were told, or what it was told itself.
    told = [each[0] if len(each[0]) > 1 else [mine for (mine,) in each] for each in by_fault]
    assert all(after_s < SOON_S for each in told for _, _, after_s in each), told
    return told


def _require_told_of_an_error(told: list[Any]) -> None:
    for rank, (kind, text, _) in enumerate(told):
        assert "a callback does not find its file" in text, told
        assert (kind == "LookupError") == (rank == 1), told
        assert ("LookupError: a callback" in text and "rank 1" in text) == (rank != 1), told


def _require_told_of_an_interrupt(told: list[Any]) -> None:
    for rank, (kind, text, _) in enumerate(told):
        assert (kind == "KeyboardInterrupt") == (rank == 1), told
        assert "KeyboardInterrupt" in text or rank == 1, told


@pytest.mark.parametrize("is_legacy", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_something_goes_wrong_on_one_rank(is_legacy: int) -> None:
    env = {"TF_USE_LEGACY_KERAS": str(is_legacy)}
    interrupted, raised, (killed,) = _told(["interrupted", "raised", "killed"], 2, **env)
    assert len(raised) == len(interrupted) == 2
    _require_told_of_an_error(raised)
    _require_told_of_an_interrupt(interrupted)
    assert "PeerLost" in killed[0] + killed[1], killed


@pytest.mark.slow
@pytest.mark.parametrize("is_legacy", [0, 1])
@pytest.mark.parametrize("fault", ["raised", "interrupted", "killed"])
def test_something_goes_wrong_on_one_replica(fault: str, is_legacy: int) -> None:
    (told,) = _told([fault], 4, TF_USE_LEGACY_KERAS=str(is_legacy))
    assert len(told) == (3 if fault == "killed" else 4)
    if fault == "raised":
        _require_told_of_an_error(told)
    elif fault == "interrupted":
        _require_told_of_an_interrupt(told)
    else:
        assert all("PeerLost" in kind + text for kind, text, _ in told), told
