# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank does elsewhere, or with something else, what all do together (`together_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("together_ranks.py"))
NESTED = "check_what_would_wait_for_the_step_that_it_is_in"
OF_PIPELINES = [name for name in CHECKS.names if name != NESTED]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _env(folder: Path) -> dict[str, str]:
    return {"TEST_FOLDER": str(folder), "TF_USE_LEGACY_KERAS": "0"}


def test_within_a_step(tmp_path: Path) -> None:
    CHECKS.require(NESTED, 2, [NESTED], **_env(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PIPELINES)
def test_of_several_pipelines(name: str, tmp_path: Path) -> None:
    CHECKS.require(name, 4, [name], **_env(tmp_path))
