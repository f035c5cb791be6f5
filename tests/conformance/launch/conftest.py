# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of smddprun and its relatives."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import clean_environment

REPORT = """
import json, os, sys
line = {"pid": os.getpid(), "environ": dict(os.environ), "arguments": sys.argv[1:]}
os.write(1, (json.dumps(line) + "\\n").encode())
"""


@pytest.fixture
def environ() -> dict[str, str]:
    environ = clean_environment()
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A script that prints its process id, environment and arguments as one line of JSON."""
    path = tmp_path / "report.py"
    path.write_text(REPORT)
    return path
