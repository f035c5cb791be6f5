# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas of a pipeline train as one process that has the batches of all of them.

A sample on two replicas; with `--run-slow` everything, on two and on four, in both Kerases, and on
two replicas of four partitions.

Source: TensorFlow modelparallel specification, sections 3.2 and 7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("hybrid_ranks.py"))
SAMPLES = {
    "0": [
        "check_adam_clipped",
        "check_mixed_float16",
        "check_statistics_are_averaged_by_one_call",
        "check_one_replica_exchanges_nothing",
        "check_a_list_from_before_the_first_step",
    ],
    "1": ["check_embeddings_with_adamw_clipped"],
}
# What trains beside one process.
_BEGINNINGS = ("check_adam", "check_sgd", "check_embeddings", "check_clipped", "check_mixed")
TRAINING = [name for name in CHECKS.names if name.startswith(_BEGINNINGS)]

pytestmark = pytest.mark.timeout(2 * DEADLINE_S + 60)


@pytest.mark.parametrize(
    ("keras", "name"), [(keras, name) for keras, names in SAMPLES.items() for name in names]
)
def test_two_replicas(keras: str, name: str) -> None:
    CHECKS.require(name, 4, SAMPLES[keras], TF_USE_LEGACY_KERAS=keras)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["0", "1"])
@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("name", CHECKS.names)
def test_all_on_two_and_four_replicas(name: str, ranks: int, keras: str) -> None:
    CHECKS.require(name, ranks, TF_USE_LEGACY_KERAS=keras)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["0", "1"])
@pytest.mark.parametrize("name", TRAINING)
def test_two_replicas_of_four_partitions(name: str, keras: str) -> None:
    env = {"TF_USE_LEGACY_KERAS": keras, "SMP_TEST_PARTITIONS": "4"}
    CHECKS.require(name, 8, TRAINING, **env)
