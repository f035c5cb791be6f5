# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files: whole or not at all; and what is no rank's trace is refused in words that help."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.dataparallel.trace.chrome import document_events
from smdistributed.dataparallel.trace.files import (
    read_rank_trace,
    read_rank_traces,
    write_rank_trace,
    write_trace,
)
from smdistributed.dataparallel.trace.model import RankInfo
from tests.unit.dataparallel.trace.synthetic import info, operation


def write(folder: Path, about: RankInfo, name: str | None = None) -> Path:
    path = folder / (name or f"trace.{about.rank}.json")
    write_rank_trace(path, about, document_events(about, [], [operation()]))
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    about = info(rank=1)
    read = read_rank_trace(write(tmp_path, about))
    assert read.info == about
    assert read.operations == [operation()]
    assert read.events == document_events(about, [], [operation()])


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "a" / "b", info())
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_there_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, info(pid=1))
    path = write(tmp_path, info(pid=2))
    assert read_rank_trace(path).info.pid == 2


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = write(tmp_path, info())
    before = path.read_bytes()

    def events() -> Any:
        yield {"ph": "M"}
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        write_trace(path, events(), {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_details_that_json_does_not_know_are_written_as_text(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", [{"ph": "i", "args": {"path": Path("x")}}], {})
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["traceEvents"] == [{"ph": "i", "args": {"path": "x"}}]


def test_traces_come_ordered_by_rank(tmp_path: Path) -> None:
    paths = [write(tmp_path, info(rank)) for rank in (1, 0)]
    assert [trace.info.rank for trace in read_rank_traces(paths)] == [0, 1]


def refused(path: Path | list[Path], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        read_rank_traces(path if isinstance(path, list) else [path])


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.json", "cannot be read .No such file.*Check the path")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", "does not say which rank wrote it"),
        ('{"traceEvents": []}', "A trace of another tool cannot be aligned"),
        ('{"smddp": {"trace": "merged", "files": ["a", "b"]}}', "it was made from: a, b"),
        ('{"smddp": {"format": 99, "version": "9.9"}}', "has format 99; expected 1"),
        ('{"smddp": {"format": 1}, "traceEvents": []}', "is damaged: KeyError 'rank'"),
    ],
)
def test_what_is_no_trace_of_a_rank_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    refused(path, expected)


@pytest.mark.parametrize("change", [{"args": {}}, {"ts": None}, {"dur": "x"}])
def test_a_damaged_event_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write(tmp_path, info())
    document = json.loads(path.read_text())
    next(e for e in document["traceEvents"] if e.get("cat") == "operation").update(change)
    path.write_text(json.dumps(document))
    refused(path, "is damaged.*record again")


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path, info(), "a.json"), write(tmp_path, info(), "b.json")]
    refused(paths, "both of rank 0.*append_rank=True")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"world_size": 3}, "world_size=2.*world_size=3"),
        ({"job": "other"}, "job=job.*job=other.*one run"),
    ],
)
def test_files_of_two_jobs_are_refused(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    refused([write(tmp_path, info(0)), write(tmp_path, info(1, **change))], expected)


def test_a_file_that_does_not_know_its_job_is_accepted(tmp_path: Path) -> None:
    paths = [write(tmp_path, info(0)), write(tmp_path, info(1, job=""))]
    assert len(read_rank_traces(paths)) == 2
