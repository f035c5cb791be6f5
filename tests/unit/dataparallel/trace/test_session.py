# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Starting and ending a recording in one process. Source: specification, section 9."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

import smdistributed.dataparallel as sdp
from smdistributed.dataparallel import trace
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPError
from smdistributed.dataparallel.trace import session as session_module
from smdistributed.dataparallel.trace.files import read_rank_trace
from smdistributed.dataparallel.trace.session import Session

RANK_VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def rank_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in RANK_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SMDDP_TRACE", raising=False)
    # What earlier tests of this process said about a job.
    monkeypatch.setattr(session_module.session, "_membership", None)
    yield
    sdp.stop_profiler()


def test_the_rank_is_put_before_the_suffix(tmp_path: Path) -> None:
    sdp.start_profiler(str(tmp_path / "trace.json"))
    sdp.stop_profiler()
    info = read_rank_trace(tmp_path / "trace.1.json").info
    assert (info.rank, info.world_size, info.pid) == (1, 2, os.getpid())
    assert info.version == sdp.__version__


def test_without_append_rank_the_name_is_kept(tmp_path: Path) -> None:
    # As the debugger library calls it.
    sdp.start_profiler(str(tmp_path / "trace.json"), append_rank=False)
    sdp.stop_profiler()
    assert os.listdir(tmp_path) == ["trace.json"]


def test_both_arguments_may_be_given_by_position_and_a_path_object_will_do(tmp_path: Path) -> None:
    sdp.start_profiler(tmp_path / "trace.json", False)
    sdp.stop_profiler()
    assert (tmp_path / "trace.json").exists()


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    sdp.start_profiler(tmp_path / "a" / "b" / "trace.json")
    assert (tmp_path / "a" / "b").is_dir()
    sdp.stop_profiler()
    assert os.listdir(tmp_path / "a" / "b") == ["trace.1.json"]


def test_a_bare_file_name_is_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sdp.start_profiler("trace.json")
    sdp.stop_profiler()
    assert os.listdir(tmp_path) == ["trace.1.json"]


def test_starting_twice_is_an_error_and_the_first_goes_on(tmp_path: Path) -> None:
    sdp.start_profiler(tmp_path / "trace.json")
    with pytest.raises(SMDDPError, match=r"will write to .*Call stop_profiler\(\) first"):
        sdp.start_profiler(tmp_path / "other.json")
    assert trace.recorder.is_recording
    sdp.stop_profiler()
    assert os.listdir(tmp_path) == ["trace.1.json"]


def test_stopping_what_does_not_run_does_nothing(tmp_path: Path) -> None:
    sdp.stop_profiler()
    sdp.start_profiler(tmp_path / "trace.json")
    sdp.stop_profiler()
    written = (tmp_path / "trace.1.json").read_bytes()
    sdp.stop_profiler()
    assert (tmp_path / "trace.1.json").read_bytes() == written


def test_a_second_recording_starts_empty(tmp_path: Path) -> None:
    for name in ("one", "two"):
        sdp.start_profiler(tmp_path / name)
        with trace.span(name, "fill"):
            pass
        sdp.stop_profiler()
    names = [e["name"] for e in read_rank_trace(tmp_path / "two.1").events if e.get("cat")]
    assert names == ["two"]


@pytest.mark.parametrize("name", [".", "file/trace.json"])
def test_a_path_that_cannot_work_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SMDDPConfigInvalid, match=r"cannot be written to.*Give another path"):
        sdp.start_profiler(tmp_path / name)
    assert not trace.recorder.is_recording


def test_an_environment_that_cannot_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(SMDDPConfigInvalid, match="RANK='one' is not an integer"):
        sdp.start_profiler(tmp_path / "trace.json")
    assert not trace.recorder.is_recording


def test_a_trace_that_cannot_be_written_is_an_error_with_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sdp.start_profiler(tmp_path / "trace.json")
    monkeypatch.setattr(session_module, "write_rank_trace", full)
    with pytest.raises(SMDDPError, match=r"trace.1.json \(No space left on device\).*make room"):
        sdp.stop_profiler()
    assert not trace.recorder.is_recording
    assert os.listdir(tmp_path) == []


def test_a_job_knows_better_than_the_environment(tmp_path: Path) -> None:
    session = Session()
    session.start(tmp_path / "trace.json")
    session.note_job(5, 8, "a job")
    session.note_group("7", [1, 5])
    session.stop()
    info = read_rank_trace(tmp_path / "trace.5.json").info
    assert (info.rank, info.world_size, info.job) == (5, 8, "a job")
    assert info.groups == {"7": [1, 5]}


def test_the_scripts_own_recording_goes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    monkeypatch.setattr(session, "_ends_with_process", True)  # this process is not the job's
    monkeypatch.setenv("SMDDP_TRACE", str(tmp_path / "whole.json"))
    session.start_from_environment()
    session.start_from_environment()  # every group of the script comes by here
    with caplog.at_level(logging.WARNING):
        session.start(tmp_path / "part.json")
    assert "ends the trace of SMDDP_TRACE" in caplog.text
    session.stop()
    assert sorted(os.listdir(tmp_path)) == ["part.1.json", "whole.1.json"]


def test_the_variable_is_checked_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMDDP_TRACE", f"{tmp_path}/")
    with pytest.raises(SMDDPConfigInvalid, match=r"SMDDP_TRACE=.*the path of a file"):
        Session().start_from_environment()


def test_a_clock_has_the_name_of_its_host_and_its_time_namespace(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("some-id\n")
    namespace = tmp_path / "time"
    namespace.symlink_to("time:[42]")
    assert session_module.clock_name(boot_id, namespace) == "some-id time:[42]"
    assert session_module.clock_name() == session_module.clock_name()
    assert session_module.clock_name(boot_id, tmp_path / "none") == "some-id time:"


def test_the_profiler_loads_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys, smdistributed.dataparallel as sdp; sdp.start_profiler(sys.argv[1]);"
        "sdp.stop_profiler(); print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "trace.json")],
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    )
    assert done.stdout == "[]\n"
    assert os.listdir(tmp_path) == ["trace.1.json"]
