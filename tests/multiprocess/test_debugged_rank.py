# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`--debug RANK`: that rank keeps the terminal, as a user at one finds it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from launchers import clean_environment
from machine_speed import scaled

WAIT_S = scaled(30)


class Terminal:
    """A terminal with a program in its foreground, as a user sees it."""

    def __init__(self, command: Sequence[str], folder: Path, environ: dict[str, str]) -> None:
        self.descriptor, inside = pty.openpty()
        self.before = termios.tcgetattr(inside)
        self.name = os.ttyname(inside)
        self.process = subprocess.Popen(
            # Becomes the leader of a session that has the terminal.
            [sys.executable, "-c", _IN_A_SESSION, self.name, *command],
            cwd=folder,
            env=environ,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        self.inside = inside
        self.seen = ""

    def read_until(self, text: str) -> None:
        until = time.monotonic() + WAIT_S
        while text not in self.seen:
            assert time.monotonic() < until, self.seen
            if select.select([self.descriptor], [], [], 0.1)[0]:
                self.seen += os.read(self.descriptor, 65536).decode()

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.descriptor, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.descriptor)
        os.close(self.inside)


_IN_A_SESSION = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[2], sys.argv[2:])
"""

SCRIPT = """\
import os, sys
rank = os.environ["RANK"]
if rank == "1":
    value = 41
    breakpoint()
    print("typed", value, sys.stdin.isatty(), sys.stdout.isatty())
print("rank", rank, os.environ["SMDDP_TIMEOUT_SECONDS"], os.environ["SMDDP_STALL_SECONDS"])
print("has a terminal", os.path.exists("/proc/self/fd/0") and os.isatty(0))
"""


@pytest.fixture
def environ() -> dict[str, str]:
    return {**clean_environment(), "TERM": "dumb"}


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for each in made:
        each.close()


def test_breakpoint_works_in_that_rank(
    tmp_path: Path, environ: dict[str, str], terminals: list[Terminal]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "smdistributed.launch", "-np", "2", "--debug", "1", "train.py"]
    terminal = Terminal(command, tmp_path, environ)
    terminals.append(terminal)
    terminal.read_until("rank 1 has this terminal, and the others wait for it without limit")
    terminal.read_until("(Pdb)")
    terminal.type("value += 1\n")
    terminal.read_until("(Pdb)")
    terminal.type("c\n")
    terminal.read_until("typed 42 True True")
    terminal.read_until("rank 1 31536000 0")
    assert terminal.process.wait(WAIT_S) == 0
    assert "[rank 1]" not in terminal.seen, "its output is its own"
    assert termios.tcgetattr(terminal.inside) == terminal.before


def test_ctrl_c_twice_ends_all_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, environ: dict[str, str], terminals: list[Terminal]
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nif os.environ['RANK'] == '0': time.sleep(100)\nbreakpoint()\n"
    )
    command = [sys.executable, "-m", "smdistributed.launch", "-np", "2", "--debug", "1", "train.py"]
    terminal = Terminal(command, tmp_path, environ)
    terminals.append(terminal)
    terminal.read_until("(Pdb)")
    terminal.type("\x03")
    terminal.read_until("send it again to kill them at once")
    terminal.type("\x03")
    assert terminal.process.wait(WAIT_S) == 130
    assert termios.tcgetattr(terminal.inside) == terminal.before


def test_the_others_have_no_terminal_and_what_the_user_sets_wins(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("breakpoint()", "pass"))
    command = [sys.executable, "-m", "smdistributed.launch", "-np", "2", "--debug", "1"]
    command += ["-x", "SMDDP_TIMEOUT_SECONDS=77", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "[rank 0] rank 0 77 0" in done.stdout
    assert "[rank 0] has a terminal False" in done.stdout


def test_a_rank_of_a_job_keeps_the_terminal_of_smd(
    tmp_path: Path, environ: dict[str, str], terminals: list[Terminal]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environ["SMD_HOME"] = str(tmp_path / "home")
    command = [sys.executable, "-m", "smdistributed.smd.main", "run", "train.py", "--debug", "1"]
    command += ["--instance-count", "2", "--processes-per-host", "1", "--name", "mine"]
    terminal = Terminal(command, tmp_path, environ)
    terminals.append(terminal)
    terminal.read_until("(Pdb)")
    assert f"rank 1 has the terminal {terminal.name}: it is not logged" in terminal.seen
    terminal.type("value += 1\n")
    terminal.read_until("(Pdb)")
    terminal.type("c\n")
    terminal.read_until("typed 42 True True")
    terminal.read_until("Training seconds")
    assert terminal.process.wait(WAIT_S) == 0
    assert termios.tcgetattr(terminal.inside) == terminal.before
    hosts = tmp_path / "home" / "jobs" / "mine" / "hosts"
    assert "rank 0 31536000 0" in (hosts / "algo-1" / "log").read_text()
    assert "typed" not in (hosts / "algo-2" / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--debug", "0"], "standard input is no terminal"),
        (["--debug", "0", "--no-wait"], "expected no --no-wait"),
    ],
)
def test_jobs_that_cannot_be_debugged(
    tmp_path: Path, environ: dict[str, str], arguments: list[str], text: str
) -> None:
    (tmp_path / "train.py").write_text("pass")
    environ["SMD_HOME"] = str(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-m", "smdistributed.smd.main", "run", "train.py", *arguments],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.parametrize(
    ("rank", "variables", "text"),
    [
        ("2", {}, "--debug 2 is no rank of 2; expected 0 to 1"),
        ("x", {}, "'x' is not a rank"),
        ("0", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "started by another launcher"),
    ],
)
def test_ranks_that_cannot_be_debugged(
    tmp_path: Path, environ: dict[str, str], rank: str, variables: dict[str, str], text: str
) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **variables} if variables else {}
    done = subprocess.run(
        [sys.executable, "-m", "smdistributed.launch", "-np", "2", "--debug", rank, "train.py"],
        cwd=tmp_path,
        env={**environ, **meeting},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr
