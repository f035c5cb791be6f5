# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of what all ranks do together inside of a step that runs (`nested_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

NESTED = Checks(Path(__file__).with_name("nested_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", NESTED.names)
def test_nested(name: str, tmp_path: Path) -> None:
    NESTED.require(name, 2, TEST_FOLDER=str(tmp_path), TF_USE_LEGACY_KERAS="0")
