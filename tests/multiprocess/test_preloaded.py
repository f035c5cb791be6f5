# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a preloaded process must not be told apart by from an interpreter that was started.

Each of these once was, or is close to what was: a script passed that no user could have run.
"""

from __future__ import annotations

import itertools
import marshal
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from machine_speed import scaled
from preloaded import Preload, Run, Server, python

# The others show that the test is right.
INTERPRETERS = pytest.mark.parametrize("kind", ["preloaded", "real"])


def run(kind: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`command` with `python` in it replaced by one of the kind, in a shell."""
    path = python() if kind == "preloaded" else sys.executable
    return subprocess.run(
        [word.replace("python", path) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


def is_preloaded(code: str = "pass", **variables: str) -> bool:
    show = "import sys; print('torch.optim' in sys.modules)"
    return run("preloaded", "python", "-c", f"{code}; {show}", **variables).stdout == "True\n"


def own_server(name: str) -> Server:
    """One that no other test uses, and that ends with the run if it has not before."""
    name = f"{name}-{os.getpid()}-{next(_NUMBERS)}"
    return Server.start(Preload.TORCH, Run.current().folder / name, Run.current())


_NUMBERS = itertools.count()


def test_it_is_preloaded() -> None:
    assert is_preloaded()


@pytest.mark.parametrize("name", ["PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_libraries_set_while_tests_run_is_no_obstacle(name: str) -> None:
    """Else all later ranks of that worker import for themselves: a run takes twice as long."""
    assert is_preloaded(**{name: "1"})
    assert not is_preloaded(TORCH_ANY="1")


@INTERPRETERS
@pytest.mark.parametrize("how", ["-c", "file"])
def test_annotations_are_evaluated_as_the_script_says(kind: str, how: str, tmp_path: Path) -> None:
    code = "def f(x: NoSuchName) -> None: pass"
    (tmp_path / "script.py").write_text(code)
    words = ["-c", code] if how == "-c" else [str(tmp_path / "script.py")]
    done = run(kind, "python", *words)
    assert done.returncode == 1
    assert "NameError: name 'NoSuchName' is not defined" in done.stderr


@INTERPRETERS
def test_a_script_knows_its_whole_path(kind: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(__file__, sys.argv)")
    done = run(kind, "sh", "-c", f"cd {tmp_path}; exec python script.py word")
    assert done.stdout == f"{tmp_path}/script.py ['script.py', 'word']\n"


SHOW = """
import os, resource, signal
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], oct(os.umask(0)),
      signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""


@INTERPRETERS
def test_limits_and_such_are_those_of_the_shell(kind: str) -> None:
    lines = f"ulimit -n 77; umask 031; trap '' HUP; exec python -c '{SHOW}'"
    assert run(kind, "sh", "-c", lines).stdout == "77 0o31 True\n"


@INTERPRETERS
def test_a_closed_stream_is_closed(kind: str) -> None:
    lines = "exec python -c 'import sys; sys.stderr.write(str(sys.stdout))' >&-"
    assert run(kind, "sh", "-c", lines).stderr == "None"


@INTERPRETERS
@pytest.mark.parametrize(
    ("name", "text", "code", "expected"),
    [
        ("TMPDIR", "/", "import tempfile; print(tempfile.gettempdir())", "/"),
        ("TZ", "UTC-3", "import time; print(time.timezone)", "-10800"),
        ("PYTHONWARNINGS", "error", "import warnings; print(warnings.filters[0][0])", "error"),
    ],
)
def test_variables_act(kind: str, name: str, text: str, code: str, expected: str) -> None:
    assert run(kind, "python", "-c", code, **{name: text}).stdout == f"{expected}\n"


@INTERPRETERS
def test_each_has_random_numbers_of_its_own(kind: str) -> None:
    code = "import random, torch; print(random.random(), torch.rand(()).item())"
    first, second = (run(kind, "python", "-c", code).stdout.split() for _ in range(2))
    assert len(first) == 2
    assert not {*first} & {*second}


@INTERPRETERS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_end_by_a_signal_is_told(kind: str, number: signal.Signals) -> None:
    done = run(kind, "python", "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    assert done.returncode == -number


def test_a_server_that_ends_is_no_end_of_a_script() -> None:
    server = own_server("ends")
    code = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); signal.pause()"
    done = subprocess.run([str(server.python), "-c", code], env=server.environ, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert b"the server of preloaded processes has ended" in done.stderr


def test_a_server_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preload, "modules", ("no_such_module",))
    server = own_server("cannot-begin")
    with pytest.raises(RuntimeError, match=r"status 1(?s:.*)No module named 'no_such_module'"):
        server.fork({})


@pytest.mark.parametrize("kind", ["preloaded", "real"])
def test_a_script_of_many_lines_ends_as_it_should(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import atexit, sys, threading, time
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.1), print("a thread"))).start()
        print("main")
        sys.exit(7)
        """)
    )
    done = run(kind, "python", str(script))
    assert (done.returncode, done.stdout) == (7, "main\na thread\nat exit\n")


def test_workers_share_a_server_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preload, "modules", ())  # what it imports is not the subject
    run, other = Run.current(), 77  # a number that nobody else uses
    server = run.server(Preload.KERAS_3, other)
    assert run.server(Preload.KERAS_3, other).python == server.python
    pid = int((server.python.parent / "process").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    assert server.wait(scaled(10))
    assert run.server(Preload.KERAS_3, other).python != server.python


@pytest.mark.parametrize(("start", "has_ended"), [("its own", False), ("1", True)])
def test_a_number_that_is_used_again_is_no_server(
    start: str, has_ended: bool, tmp_path: Path
) -> None:
    """A server has ended, and this process has its number; the first case is the control.

    The folder is not one of the run's, which takes all of those for servers.
    """
    if start == "its own":
        start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (tmp_path / "environ").write_bytes(marshal.dumps({}))
    (tmp_path / "process").write_text(f"{os.getpid()} {start}")
    assert Server(Preload.TORCH, tmp_path, None).has_ended == has_ended


def test_a_start_that_was_cut_short_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preload, "modules", ())
    run, other = Run.current(), 78
    (run.folder / f"TORCH-{other}").write_bytes(b".")
    (run.folder / f"TORCH-{other}.1").mkdir()
    assert run.server(Preload.TORCH, other).python.parent.name == f"TORCH-{other}.2"
