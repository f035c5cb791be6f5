# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is said of a backend that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdistributed.launch.backends.answers import answers
from smdistributed.launch.data.settings import BACKENDS
from smdistributed.launch.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    return Home(tmp_path)


def test_this_machine_need_not_be_asked(home: Home) -> None:
    assert answers("local", home) == {}


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "local"])
def test_all_others_say_what_to_do(home: Home, backend: str) -> None:
    (said,) = answers(backend, home).values()
    assert "expected" in said or "Try by hand" in said or "pip install" in said, said


def test_settings_that_are_wrong_are_told(home: Home) -> None:
    home.config.write_text("[slurm]\npartitions = 3\n")
    assert "slurm.partitions" in answers("slurm", home)["slurm"]
