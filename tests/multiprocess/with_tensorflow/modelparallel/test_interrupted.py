# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Interrupts where the driver does not wait, and saves that go wrong (`interrupted_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("interrupted_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("interrupted"))


@pytest.mark.parametrize(
    "legacy_keras",
    [
        pytest.param("0", id="keras-3"),
        pytest.param("1", id="tf-keras", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", CHECKS.names)
def test_interrupted(name: str, legacy_keras: str, folder: str) -> None:
    CHECKS.require(name, 2, TF_USE_LEGACY_KERAS=legacy_keras, TEST_FOLDER=folder)
