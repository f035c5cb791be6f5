# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank does elsewhere, or with something else, what all do together (`together_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("together_ranks.py"))
OF_PIPELINES = ["check_other_optimizers_in_one_pipeline_end_it_in_all"]
OF_ONE = [name for name in CHECKS.names if name not in OF_PIPELINES]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _env(folder: Path) -> dict[str, str]:
    return {"TEST_FOLDER": str(folder), "TF_USE_LEGACY_KERAS": "0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.mark.parametrize("name", OF_ONE)
def test_of_one_pipeline(name: str, folder: Path) -> None:
    CHECKS.require(name, 2, OF_ONE, **_env(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PIPELINES)
def test_of_several_pipelines(name: str, tmp_path: Path) -> None:
    CHECKS.require(name, 4, [name], **_env(tmp_path))
