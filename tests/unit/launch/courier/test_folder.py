# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of a courier goes with it, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

SCRIPT = """
import sys
from smdistributed.launch.courier import folder
folder._MOST_SILENT_S = 1.0
with folder.folder_of_its_own() as own:
    (own.path / "data").mkdir(mode=0o500)
    print(own.path, own.sweeper, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def courier(home: Path) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SMD_HOME": str(home)},
    ) as process:
        assert process.stdout is not None
        path, sweeper = process.stdout.readline().split()
        yield process, Path(path), int(sweeper)


def wait_until_gone(path: Path) -> None:
    until = time.monotonic() + scaled(10)
    while path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("number", [None, signal.SIGKILL, signal.SIGSTOP])
def test_it_goes(number: signal.Signals | None, tmp_path: Path) -> None:
    with courier(tmp_path) as (process, path, _):
        assert path.parent == tmp_path / "hosts"
        assert path.stat().st_mode & 0o777 == 0o700
        if number is None:
            process.communicate()
        else:
            process.send_signal(number)  # one that is stopped shows no life, and is killed
            process.wait(scaled(10))
        wait_until_gone(path)


def test_nobody_s_is_removed_but_what_nobody_uses(tmp_path: Path) -> None:
    machine = os.uname().nodename
    with courier(tmp_path) as (first, used, sweeper):
        os.kill(sweeper, signal.SIGKILL)
        left = tmp_path / "hosts" / f"{machine}-left"
        others = tmp_path / "hosts" / "another-machine-left"
        for each in (left, others):
            (each / "hosts" / "algo-1").mkdir(parents=True)
        with courier(tmp_path) as (second, _, _):
            assert used.is_dir()
            assert others.is_dir()
            assert not left.exists()
            second.communicate()
        first.kill()
        first.wait()
        assert used.is_dir()  # as on a machine that was switched off
        with courier(tmp_path) as (third, _, _):
            assert not used.exists()
            third.communicate()
