# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small promises: what is logged, switched off, refused; XLA (`small_promise_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "small_promise_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("promises"))


@pytest.mark.parametrize("is_legacy", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHECKS.names)
def test_small_promises(name: str, is_legacy: int, folder: str) -> None:
    CHECKS.require(name, 2, TF_USE_LEGACY_KERAS=str(is_legacy), TEST_FOLDER=folder)
