# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun` at a terminal: its keys, its end, and ranks that have none.

The terminal is a pseudo-terminal; a shell with job control leads its session, as at a desk.
"""

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launchers import clean_environment, process_state, wait_until_gone
from machine_speed import scaled

pytestmark = pytest.mark.timeout(90)

WAIT_S = scaled(60)

CTRL_C = b"\x03"
CTRL_Z = b"\x1a"

WAIT_FOR_SIGINT = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.write(1, f"pid {os.getpid()}, smddprun {os.getppid()}\\n".encode())
signal.sigwait({signal.SIGINT})
os.write(1, b"interrupted\\n")
sys.exit(5)
"""


class Terminal:
    """A terminal with a shell that runs some lines; `smddprun` stands for two ranks of a script."""

    def __init__(self, tmp_path: Path, script: str, lines: str) -> None:
        path = tmp_path / "job.py"
        path.write_text(textwrap.dedent(script))
        smddprun = [sys.executable, "-m", "smdistributed.launch", "-np", "2", str(path)]
        self._master, terminal = pty.openpty()
        self.name = os.ttyname(terminal)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # Under nohup SIGHUP is ignored, which children inherit and smddprun respects.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

        self.shell = subprocess.Popen(
            # -m: job control, so that each command is a process group of its own.
            ["sh", "-m", "-c", lines.replace("smddprun", shlex.join(smddprun))],
            env=clean_environment({"TERMINAL": self.name}),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(terminal)
        self.output = ""

    def read_until(self, text: str, times: int = 1) -> None:
        while self.output.count(text) < times:
            assert select.select([self._master], [], [], WAIT_S)[0], f"no {text!r}: {self.output}"
            try:
                self.output += os.read(self._master, 65536).decode()
            except OSError:  # all who had the terminal open are gone
                pytest.fail(f"no {text!r}: {self.output}")

    def pids(self) -> tuple[list[int], int]:
        """Process ids of the ranks and of their launcher, as `WAIT_FOR_SIGINT` prints them."""
        self.read_until("smddprun ", 2)
        self.read_until("\n", 2)
        found = re.findall(r"pid (\d+), smddprun (\d+)", self.output)
        assert len(found) == 2
        return [int(rank) for rank, _ in found], int(found[0][1])

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def end(self) -> None:
        """Leaves nothing behind."""
        self.close()
        if self.shell.poll() is None:
            self.shell.kill()
        self.shell.wait()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.end()


def test_a_rank_has_no_terminal_to_wait_for(tmp_path: Path, terminals: list[Terminal]) -> None:
    """A rank that asked the terminal for something would be stopped, and the job with it."""
    script = """
    import errno, getpass, os, subprocess, sys
    if len(sys.argv) == 1:
        subprocess.run([sys.executable, __file__, "a worker"], check=True)
    try:
        os.read(os.open("/dev/tty", os.O_RDWR), 1)
    except OSError as error:
        os.write(1, f"no terminal: {errno.errorcode[error.errno]}\\n".encode())
    try:
        getpass.getpass()
    except EOFError:
        os.write(1, b"no password\\n")
    """
    terminal = Terminal(tmp_path, script, "smddprun; echo status $?.")
    terminals.append(terminal)
    terminal.read_until("status 0.")
    # Two ranks, each with a worker.
    assert terminal.output.count("no terminal: ENXIO") == 4
    assert terminal.output.count("no password") == 4


def test_a_rank_that_writes_to_the_terminal_by_its_name_is_not_stopped(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    script = """
    import os
    with open(os.environ["TERMINAL"], "w") as terminal:
        terminal.write("written past smddprun\\n")
    """
    terminal = Terminal(tmp_path, script, "stty tostop; smddprun; echo status $?.")
    terminals.append(terminal)
    terminal.read_until("status 0.")
    assert terminal.output.count("written past smddprun") == 2


def test_ctrl_c_reaches_the_ranks_through_smddprun(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    terminal = Terminal(tmp_path, WAIT_FOR_SIGINT, "smddprun; echo status $?.")
    terminals.append(terminal)
    ranks, smddprun = terminal.pids()
    terminal.type(CTRL_C)
    terminal.read_until("status 130.")
    assert terminal.output.count("interrupted") == 2
    assert "SIGINT: passed on to all ranks" in terminal.output
    wait_until_gone([*ranks, smddprun])


def test_ctrl_z_stops_smddprun_alone_until_it_is_in_the_foreground_again(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    lines = "smddprun; echo status $?.; read any; fg; echo status $?."
    terminal = Terminal(tmp_path, WAIT_FOR_SIGINT, lines)
    terminals.append(terminal)
    ranks, smddprun = terminal.pids()
    terminal.type(CTRL_Z)
    terminal.read_until(f"status {128 + signal.SIGTSTP}.")
    assert process_state(smddprun) == "T"
    assert {process_state(rank) for rank in ranks} <= {"S", "R"}
    terminal.type(b"\n")
    # A shell hands over the terminal before it continues a job.
    deadline = time.monotonic() + WAIT_S
    while process_state(smddprun) == "T":
        assert time.monotonic() < deadline, terminal.output
        time.sleep(0.01)
    terminal.type(CTRL_C)
    terminal.read_until("status 130.")
    assert terminal.output.count("interrupted") == 2
    wait_until_gone([*ranks, smddprun])


def test_a_terminal_that_closes_ends_the_ranks(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(tmp_path, WAIT_FOR_SIGINT, "smddprun; echo status $?.")
    terminals.append(terminal)
    ranks, smddprun = terminal.pids()
    terminal.close()
    wait_until_gone([*ranks, smddprun])


def test_a_killed_smddprun_takes_its_ranks_along(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(tmp_path, WAIT_FOR_SIGINT, "smddprun; echo status $?.")
    terminals.append(terminal)
    ranks, smddprun = terminal.pids()
    os.kill(smddprun, signal.SIGKILL)
    terminal.read_until("status 137.")
    wait_until_gone([*ranks, smddprun])
