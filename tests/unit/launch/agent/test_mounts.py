# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A folder at `/opt/ml`, for the processes of a namespace alone (launch specification, 7.1)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from smdistributed.launch.agent import mounts
from smdistributed.launch.agent.mounts import Step, available_step, wrapped

NOBODY = 65534
SAYS = 'echo "$(id -u)" > /opt/ml/who; ls -A /opt; echo "$1"; readlink /opt/ml/x || true'


def test_without_a_step_the_command_is_what_it_was(tmp_path: Path) -> None:
    assert wrapped(Step.NONE, tmp_path, ["python", "a b"]) == ["python", "a b"]


def test_the_folder_is_there_and_the_rest_of_opt_too(tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"/opt/ml cannot be mounted here: {why}")
    before = sorted(os.listdir("/opt"))
    command = wrapped(step, tmp_path, ["/bin/sh", "-c", SAYS, "sh", "x $HOME  y"])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *inside, argument = done.stdout.splitlines()
    assert sorted(inside) == sorted({*before, "ml"})
    assert argument == "x $HOME  y"
    assert (tmp_path / "who").read_text() == f"{os.getuid()}\n"
    assert sorted(os.listdir("/opt")) == before, "nothing is left behind"


def test_the_status_of_the_command_is_kept(tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if step is Step.NONE:
        pytest.skip(f"/opt/ml cannot be mounted here: {why}")
    assert (
        subprocess.run(wrapped(step, tmp_path, ["sh", "-c", "exit 7"]), check=False).returncode == 7
    )


def test_an_ordinary_user_stays_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    monkeypatch.setattr(mounts.os, "getuid", lambda: NOBODY)
    monkeypatch.setattr(mounts.os, "getgid", lambda: NOBODY)
    folder = Path("/tmp") / f"smd-mounts-{os.getpid()}"  # which nobody may reach
    folder.mkdir()
    try:
        os.chown(folder, NOBODY, NOBODY)
        command = wrapped(Step.USER_NAMESPACE, folder, ["/bin/sh", "-c", SAYS, "sh", "x"])
        done = subprocess.run(
            command, capture_output=True, text=True, user=NOBODY, group=NOBODY, cwd="/", check=False
        )
        if "unshare failed" in done.stderr:
            pytest.skip(f"user namespaces are forbidden here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        assert "ml" in done.stdout.split()
        assert (folder / "who").read_text() == f"{NOBODY}\n"
        assert (folder / "who").stat().st_uid == NOBODY
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_machine_without_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    step, why = available_step(tmp_path)
    assert step is Step.NONE
    assert "no command unshare" in why


def test_a_machine_that_forbids_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unshare").write_text(
        "#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert available_step(tmp_path) == (Step.NONE, "unshare failed: Operation not permitted")


def test_a_host_that_is_killed_at_its_start_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    folder, programs, elsewhere = (tmp_path / each for each in ("job/ml", "programs", "tmp"))
    for each in (folder, programs, elsewhere):
        each.mkdir(parents=True)
    step, why = available_step(folder)
    if not step.is_mount:
        pytest.skip(f"/opt/ml cannot be mounted here: {why}")
    (programs / "mount").write_text("#!/bin/sh\nkill -9 $PPID\n")
    (programs / "mount").chmod(0o755)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(elsewhere)}
    done = subprocess.run(wrapped(step, folder, ["true"]), env=environ, check=False)
    assert done.returncode == -9
    assert list(elsewhere.iterdir()) == []
    assert len(list(folder.parent.iterdir())) == 2  # it goes with the job
