# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of ranks that run (`report_ranks.py`), plans of those that do not (`plan_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "report_ranks.py")
PLANS = Checks(Path(__file__).parent / "plan_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("reports"))


@pytest.mark.parametrize("name", CHECKS.names)
def test_reports(name: str, folder: str) -> None:
    CHECKS.require(name, 2, TEST_FOLDER=folder)


def _require_plans(folder: str, **env: str) -> None:
    first, _, second = PLANS.names
    PLANS.require(first, 1, [first], TEST_FOLDER=folder, **env)
    PLANS.require(second, 2, [second], TEST_FOLDER=folder, **env)


def test_plans(folder: str) -> None:
    _require_plans(folder)


@pytest.mark.slow
def test_replicas(folder: str) -> None:
    PLANS.require(PLANS.names[1], 4, [PLANS.names[1]], TEST_FOLDER=folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS.names)
def test_reports_with_the_other_keras(name: str, folder: str) -> None:
    CHECKS.require(name, 2, TEST_FOLDER=folder, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
def test_plans_with_the_other_keras(folder: str) -> None:
    _require_plans(folder, TF_USE_LEGACY_KERAS="1")
