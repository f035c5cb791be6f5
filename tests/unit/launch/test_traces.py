# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smddprun --trace` does around a job, without one."""

import os
from pathlib import Path

from smdistributed.launch.traces import merge_traces, remove_old_traces


def test_only_what_the_job_will_write_is_removed(tmp_path: Path) -> None:
    for name in ("t.json", "t.0.json", "t.1.json", "t.2.json", "u.json"):
        (tmp_path / name).write_text("")
    remove_old_traces(str(tmp_path / "t.json"), 2)
    assert sorted(os.listdir(tmp_path)) == ["t.2.json", "u.json"]
    remove_old_traces(str(tmp_path / "t.json"), 2)  # nothing there is nothing wrong


def test_a_job_without_traces_is_told_what_it_lacks(tmp_path: Path) -> None:
    said: list[str] = []
    merge_traces(str(tmp_path / "t.json"), 2, said.append)
    [line] = said
    assert "no rank has written a trace; expected a script that imports" in line
    assert os.listdir(tmp_path) == []


def test_a_refusal_of_the_merge_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "t.1.json").write_text("{")
    said: list[str] = []
    merge_traces(str(tmp_path / "t.json"), 2, said.append)
    assert len(said) == 1
    assert said[0].startswith("smddptrace: ")
    assert "t.1.json is not JSON" in said[0]
