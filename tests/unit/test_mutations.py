# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each fault of tests/mutations still has its place: whoever changes that line moves the fault."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_FAULTS = tomllib.loads((_ROOT / "tests/mutations/faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: str(fault["name"]))
def test_a_fault_has_one_place(fault: dict[str, object]) -> None:
    text = (_ROOT / str(fault["file"])).read_text()
    assert text.count(str(fault["old"])) == 1
    assert fault["old"] != fault["new"]
    for test in fault["tests"]:  # type: ignore[attr-defined]
        assert str(test).startswith("native/") or (_ROOT / str(test).partition("::")[0]).exists()
