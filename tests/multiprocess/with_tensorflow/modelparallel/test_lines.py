# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Interrupts between any two lines of what all ranks do together (`line_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

LINES = Checks(Path(__file__).with_name("line_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _require(name: str, folder: Path, **env: str) -> None:
    LINES.require(name, 2, [name], TEST_FOLDER=str(folder), TF_USE_LEGACY_KERAS="0", **env)


@pytest.mark.parametrize("name", LINES.names)
def test_some_lines(name: str, tmp_path: Path) -> None:
    _require(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES.names)
def test_each_line(name: str, tmp_path: Path) -> None:
    _require(name, tmp_path, SMP_TEST_EVERY="1")
