# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Variables of the caller's that would leave tests out, or let them pass whatever is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machine_speed import scaled

ROOT = Path(__file__).resolve().parents[2]

UNSET = (
    *("FOLDER", "PYTEST_ARGS", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "SMD_TEST_SERVERS"),
    *("PYTHONOPTIMIZE", "MAKEFLAGS", "GNUMAKEFLAGS", "MAKEFILES"),
    *("GTEST_FILTER", "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"),
)


def _run(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(60),
    )
    return done.returncode, done.stdout


def test_python_that_leaves_asserts_out_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", __file__]
    status, output = _run(command, {"PYTHONOPTIMIZE": "1", "PYTEST_ADDOPTS": ""})
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "without its assert statements" in output


def test_continuous_integration_unsets_them(tmp_path: Path) -> None:
    """In another folder, with a `make` that says what it was given."""
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    make = tmp_path / "make"
    make.write_text("#!/bin/sh\necho make $2\nenv\n")
    make.chmod(0o755)
    given = dict.fromkeys(UNSET, "/nowhere")
    status, output = _run([script], {**given, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert status == 0, output
    assert "make test" in output
    assert [line for line in output.splitlines() if line.endswith("=/nowhere")] == []
