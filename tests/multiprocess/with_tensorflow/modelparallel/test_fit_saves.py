# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras that save the model, in `fit` on several ranks.

Source: TensorFlow modelparallel specification, section 5.4.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("saving_ranks.py"))
NEXT = "check_it_goes_on"
OF_REPLICAS = [name for name in CHECKS.names if "replicas" in name]
OF_PIPELINES = [name for name in CHECKS.names if name not in (NEXT, *OF_REPLICAS)]
KERASES = [
    pytest.param("0", id="keras-3"),
    pytest.param("1", id="tf-keras", marks=pytest.mark.slow),
]

pytestmark = pytest.mark.timeout(2 * DEADLINE_S + 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("saves"))


@pytest.mark.parametrize("legacy", KERASES)
@pytest.mark.parametrize("name", OF_PIPELINES)
def test_callbacks_that_save(name: str, legacy: str, folder: str) -> None:
    env = {"TF_USE_LEGACY_KERAS": legacy, "TEST_FOLDER": folder}
    CHECKS.require(name, 2, OF_PIPELINES, **env)


@pytest.mark.parametrize("legacy", KERASES)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_new_processes_go_on(ranks: int, legacy: str, folder: str) -> None:
    """With one partition and with two, from what the test above has left."""
    env = {"TF_USE_LEGACY_KERAS": legacy, "TEST_FOLDER": folder}
    CHECKS.require(OF_PIPELINES[-1], 2, OF_PIPELINES, **env)
    CHECKS.require(NEXT, ranks, [NEXT], **env)


@pytest.mark.slow
@pytest.mark.parametrize("legacy", ["0", "1"], ids=["keras-3", "tf-keras"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_two_replicas(partitions: int, legacy: str, folder: str) -> None:
    env = {"TF_USE_LEGACY_KERAS": legacy, "TEST_FOLDER": folder}
    env["SMP_TEST_PARTITIONS"] = str(partitions)
    for name in OF_REPLICAS:
        CHECKS.require(name, 2 * partitions, OF_REPLICAS, **env)
