# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the order of turns, and what stands in a result file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


def test_the_order_of_columns_turns_by_one_each_round(load: Load) -> None:
    in_turn = load("common.rounds").in_turn
    found = ["".join(in_turn("abc", number)) for number in range(4)]
    assert found == ["abc", "bca", "cab", "abc"]
    assert in_turn([], 1) == []


def test_a_result_file_names_the_run_and_no_path(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "found.json"
    monkeypatch.setattr(
        sys, "argv", ["/some/where/step.py", "--rounds", "3", "--out", str(out), "--gbit=1"]
    )
    file = load("common.result_files").ResultFile(Path("/some/where"), out)
    assert file.name == "found.json"
    file.write(results=[{"a": 1}, {"a": [2, 3]}], rounds=3)
    text = out.read_text()
    content = json.loads(text)
    assert list(content) == [
        *("schema", "benchmark", "date", "command", "environment"),
        *("rounds", "results"),
    ]
    assert content["schema"] == 1
    assert content["benchmark"] == "where"
    assert content["command"] == "python benchmarks/where/step.py --rounds 3 --gbit=1"
    assert text.endswith(' "results": [\n{"a": 1},\n{"a": [2, 3]}\n ]\n}\n')


def test_a_result_file_without_a_name_goes_into_results(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py"])
    file = load("common.result_files").ResultFile(tmp_path, None, "quick")
    file.write()
    assert [path.name for path in (tmp_path / "results").iterdir()] == [file.name]
    assert file.name.endswith("_quick.json")
