# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun` as a user runs it: real processes, real signals, and nothing left behind."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import clean_environment, process_state, wait_until_gone
from machine_speed import scaled

pytestmark = pytest.mark.timeout(90)

WAIT_S = scaled(60)


@pytest.fixture
def environ() -> dict[str, str]:
    return clean_environment()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script in which `rank`, `say` and `wait_for_ever` are at hand; the test adds the rest."""
    path = tmp_path / "job.py"
    path.write_text(
        textwrap.dedent("""\
        import os, signal, subprocess, sys, time
        rank = int(os.environ["RANK"])
        def say(text):
            # One write: print() makes two, between which a forked worker's line could fall.
            os.write(1, f"{text}\\n".encode())
        def wait_for_ever():
            while True:
                # Not for ever at once: a signal that Python has noticed, but whose handler has not
                # run yet, would not end signal.pause().
                time.sleep(0.1)
        """)
    )
    return path


def add(script: Path, code: str) -> None:
    script.write_text(script.read_text() + textwrap.dedent(code))


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "smdistributed.launch", *map(str, arguments)]


def run(environ: dict[str, str], *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), env=environ, capture_output=True, text=True, timeout=WAIT_S
    )


class Job:
    """A running `smddprun` whose ranks print their process ids as `pid N`."""

    def __init__(self, environ: dict[str, str], *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            command(*arguments),
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Under nohup SIGHUP is ignored, which children inherit and smddprun respects.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        self.output = ""

    def read_until(self, text: str, times: int = 1) -> None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while self.output.count(text) < times:
            assert select.select([descriptor], [], [], WAIT_S)[0], f"{text!r} not in {self.output}"
            chunk = os.read(descriptor, 65536)
            assert chunk, f"{text!r} not in {self.output}"
            self.output += chunk.decode()

    def pids(self) -> list[int]:
        words = self.output.split()
        return [int(words[i + 1]) for i, word in enumerate(words[:-1]) if word == "pid"]

    def end(self) -> int:
        rest, _ = self.process.communicate(timeout=WAIT_S)
        self.output += rest.decode()
        return self.process.returncode


@pytest.fixture
def start_job(environ: dict[str, str]) -> Iterator[Callable[..., Job]]:
    """Starts smddprun with these arguments and variables; what is left of it ends with the test."""
    started: list[Job] = []

    def start(*arguments: str | Path, **variables: str) -> Job:
        started.append(Job(environ | variables, *arguments))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        if job.process.stdout is not None:
            job.process.stdout.close()


def test_every_rank_runs_with_its_environment_and_prefix(
    environ: dict[str, str], script: Path
) -> None:
    add(
        script,
        """
        names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
        say(" ".join(os.environ[name] for name in names))
        say(sys.stdin.read() or "no input")
        print("to stderr", sys.argv[1:], file=sys.stderr)
        """,
    )
    done = run(environ, "-np", "3", script, "-np", "7")
    assert done.returncode == 0, done.stderr
    expected = [f"[rank {rank}] 3 {rank} 3 127.0.0.1 1" for rank in range(3)]
    expected += [f"[rank {rank}] no input" for rank in range(3)]
    assert sorted(done.stdout.splitlines()) == sorted(expected)
    assert sorted(done.stderr.splitlines()) == [
        f"[rank {rank}] to stderr ['-np', '7']" for rank in range(3)
    ]


def test_python_in_front_of_the_script_and_x_and_cpu(environ: dict[str, str], script: Path) -> None:
    add(script, 'say(os.environ["A"] + os.environ["B"] + os.environ["SMDDP_CPU_SHIM"])')
    arguments = ("-np", "1", "-x", "A=1", "-x", "B", "--cpu", sys.executable, script)
    done = run(environ | {"A": "0", "B": "2"}, *arguments)
    assert done.stdout == "[rank 0] 12full\n"


def test_lines_of_many_ranks_stay_whole(environ: dict[str, str], script: Path) -> None:
    add(script, "for step in range(200): os.write(1, b'%d-' % rank); os.write(1, b'%d\\n' % step)")
    done = run(environ, "-np", "4", script)
    lines = done.stdout.splitlines()
    assert sorted(lines) == sorted(
        f"[rank {rank}] {rank}-{step}" for rank in range(4) for step in range(200)
    )


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("sys.exit(3)", 3, "failed with exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL (exit status 137)"),
        ("raise ValueError('the cause')", 1, "  | ValueError: the cause"),
    ],
)
def test_the_first_failure_ends_all_and_gives_the_status(
    environ: dict[str, str], script: Path, code: str, status: int, text: str
) -> None:
    add(script, f"if rank == 1:\n    {code}\nwait_for_ever()")
    done = run(environ, "-np", "3", script)
    assert done.returncode == status
    assert text in done.stderr
    assert "smddprun: rank 1 (pid " in done.stderr
    assert "the other 2 rank(s) were ended" in done.stderr


@pytest.mark.parametrize("killed", [0, 1])
def test_of_ranks_found_dead_at_once_the_killed_one_is_named(
    script: Path, start_job: Callable[..., Job], killed: int
) -> None:
    """The other one may have failed because of it, and has an exit status, too."""
    add(
        script,
        """
        def end(number, frame):
            if rank == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(1)
        signal.signal(signal.SIGTERM, end)
        say(f"pid {os.getpid()}")
        wait_for_ever()
        """,
    )
    job = start_job("-np", "2", script, str(killed))
    job.read_until("pid ", 2)
    # While it is stopped both die; it finds them together when it goes on.
    job.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, job.process.pid, os.WSTOPPED)
    pids = job.pids()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    wait_until_gone(pids)
    job.process.send_signal(signal.SIGCONT)
    assert job.end() == 128 + signal.SIGKILL
    assert f"smddprun: rank {killed} (pid " in job.output
    assert "was killed by SIGKILL (exit status 137)" in job.output


def test_a_rank_that_ignores_sigterm_and_its_workers_are_killed(
    script: Path, start_job: Callable[..., Job]
) -> None:
    add(
        script,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.fork() == 0:
            say(f"pid {os.getpid()}")
            wait_for_ever()
        say(f"pid {os.getpid()}")
        wait_for_ever()
        """,
    )
    job = start_job("-np", "2", script)
    job.read_until("pid ", 4)
    job.process.send_signal(signal.SIGINT)
    job.read_until("send it again to kill")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 128 + signal.SIGINT
    assert len(job.pids()) == 4
    wait_until_gone(job.pids())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(
    script: Path, start_job: Callable[..., Job], number: signal.Signals
) -> None:
    add(
        script,
        f"""
        def leave(*_):
            say("leaving")
            sys.exit(5)
        signal.signal({int(number)}, leave)
        say(f"pid {{os.getpid()}}")
        wait_for_ever()
        """,
    )
    job = start_job("-np", "2", script)
    job.read_until("pid ", 2)
    job.process.send_signal(number)
    assert job.end() == 128 + number
    assert job.output.count("leaving") == 2
    wait_until_gone(job.pids())


def test_a_signal_that_all_ranks_take_in_good_order_is_no_failure(
    script: Path, start_job: Callable[..., Job]
) -> None:
    add(
        script,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        say(f"pid {os.getpid()}")
        wait_for_ever()
        """,
    )
    job = start_job("-np", "2", script)
    job.read_until("pid ", 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0


def test_ranks_lead_groups_of_their_own_in_the_session_of_smddprun(
    environ: dict[str, str], script: Path
) -> None:
    """Yields of the processor stay within a session where the kernel schedules it as a group."""
    add(script, 'say(f"{os.getsid(0)} {os.getpgrp() == os.getpid()}")')
    done = run(environ, "-np", "2", script)
    assert done.returncode == 0, done.stderr
    session = os.getsid(0)
    assert sorted(done.stdout.splitlines()) == [f"[rank {i}] {session} True" for i in range(2)]


def test_a_rank_that_has_left_its_group_gets_ctrl_c_too(
    script: Path, start_job: Callable[..., Job]
) -> None:
    add(
        script,
        """
        os.setpgid(0, os.getpgid(os.getppid()))
        say(f"pid {os.getpid()}")
        wait_for_ever()
        """,
    )
    job = start_job("-np", "2", script)
    job.read_until("pid ", 2)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 128 + signal.SIGINT
    assert job.output.count("KeyboardInterrupt") == 2
    wait_until_gone(job.pids())


def test_workers_left_behind_by_a_rank_are_ended(environ: dict[str, str], script: Path) -> None:
    add(
        script,
        """
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        say(f"pid {child.pid}")
        """,
    )
    done = run(environ, "-np", "2", script)
    assert done.returncode == 0
    pids = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(pids) == 2
    assert [process_state(pid) for pid in pids] == [None, None]


def test_nothing_survives_a_killed_supervisor(script: Path, start_job: Callable[..., Job]) -> None:
    add(
        script,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        say(f"pid {os.getpid()}")
        wait_for_ever()
        """,
    )
    job = start_job("-np", "2", script)
    job.read_until("pid ", 4)
    job.process.kill()
    job.end()
    assert len(job.pids()) == 4
    wait_until_gone(job.pids())


def test_a_reader_that_goes_away_ends_the_job(script: Path, start_job: Callable[..., Job]) -> None:
    add(script, "say(f'pid {os.getpid()}')\nwhile True: say('more')")
    job = start_job("-np", "2", script)
    job.read_until("pid ", 2)
    assert job.process.stdout is not None
    job.process.stdout.close()
    assert job.process.wait(WAIT_S) == 128 + signal.SIGPIPE
    wait_until_gone(job.pids())


def test_inside_mpirun_the_command_takes_over_the_process(
    script: Path, start_job: Callable[..., Job]
) -> None:
    add(
        script,
        """
        say(f"pid {os.getpid()}")
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SMDATAPARALLEL_LOCAL_RANK", "MASTER_ADDR")
        say(" ".join(os.environ[name] for name in names))
        sys.exit(137)
        """,
    )
    openmpi = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    job = start_job("-mca", "btl", "tcp", sys.executable, script, **openmpi)
    assert job.end() == 137
    assert job.pids() == [job.process.pid]
    assert "1 2 1 1 127.0.0.1" in job.output
    assert "left out, as they have no meaning here: -mca btl tcp" in job.output


def test_torchrun_variables_leave_the_environment_as_it_is(
    environ: dict[str, str], script: Path
) -> None:
    add(script, 'say(" ".join(sorted(name for name in os.environ if "SMDATA" in name)) + ".")')
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    done = run(environ | torchrun, script)
    assert (done.returncode, done.stdout) == (0, ".\n")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ((), 2, "usage: smddprun"),
        (("-np", "2", "--bogus", "x"), 2, "unknown flag '--bogus'"),
        (("-H", "192.0.2.1", "x"), 2, "mpirun, srun or torchrun"),
        (("-np", "2", "no-such-program"), 127, "cannot run 'no-such-program'"),
        (("-np", "2", "/"), 126, "cannot run '/'"),
    ],
)
def test_refusals(
    environ: dict[str, str], arguments: tuple[str, ...], status: int, text: str
) -> None:
    done = run(environ, *arguments)
    assert done.returncode == status
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_environment_is_told_in_words(environ: dict[str, str], script: Path) -> None:
    done = run(environ | {"RANK": "two", "WORLD_SIZE": "2"}, script)
    assert done.returncode == 2
    assert "RANK='two' is not an integer" in done.stderr
    assert "Traceback" not in done.stderr


def test_smddpmprun_sets_the_instance_type_and_execs(environ: dict[str, str], script: Path) -> None:
    add(script, 'say(os.environ["SAGEMAKER_INSTANCE_TYPE"] + os.environ["LOCAL_RANK"])')
    pmi = {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    code = "import sys; from smdistributed.launch.cli import main_mprun; sys.exit(main_mprun())"
    arguments = ["-i", "ml.p4d.24xlarge", "--allow-bypass", sys.executable, str(script)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environ | pmi,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout) == (0, "ml.p4d.24xlarge0\n"), done.stderr
