# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that find torch, or TensorFlow, already imported.

    process = start_call(Preload.TORCH, function, *arguments)     # as a rank of the harness
    subprocess.run([python(), "train.py"])                        # as a script that a user runs

Starting an interpreter and importing torch costs 2 to 3 seconds of a processor, TensorFlow 3 to 4;
most tests are not about that. A server per set of libraries imports them once in a run of pytest,
and forks a process per request (`preloaded_server.py`), which takes some 0.04 s. Each is a process
of its own: whatever a test does to its libraries, environment or descriptors ends with it.

A test whose subject is the start or the end of an interpreter is marked `fresh`: both ways then
start real ones. One test at least of each folder is. What a server cannot do for a process, such as
an option of the interpreter's or a variable that a library has read by then, starts a real one too.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import enum
import fcntl
import functools
import marshal
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import preloaded_python
from preloaded_python import early, note, obstacles, place
from preloaded_server import SPENT, worker

preloaded_python.LIBRARIES = f"{sys.prefix}/lib"
_VARIABLE = "SMD_TEST_SERVERS"  # the folder of `Run`, for the workers
_HERE = Path(__file__).resolve().parent
_SERVER = _HERE / "preloaded_server.py"
_PROCESS = "process"  # name of a server's file with its `_Birth`
_AFRESH = "afresh"  # name of a server's file, one line for each process that it could not be
# All of ours that acts when it is used and not when it is imported. `torch_smddp` is not among it.
_OURS = (
    "smdistributed.collectives",
    "smdistributed.dataparallel.torch.registration",
    "preloaded_model_parallel",
)
_TESTING = ("pytest", "numpy", "harness", "launchers")
_TORCH = (
    *_TESTING,
    "torch",
    "torch._dynamo",  # the first optimizer of a process imports it, for a second
    "torch.distributed",
    "torch.distributed.run",
    "torch.distributed.algorithms.join",
    "torch.distributed.elastic.multiprocessing",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.optim",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    *_OURS,
)


class Preload(enum.Enum):
    """What a process finds imported."""

    TORCH = "torch"
    TRAINERS = "trainers"
    KERAS_3 = "keras 3"
    LEGACY_KERAS = "legacy keras"

    @property
    def modules(self) -> tuple[str, ...]:
        if self is Preload.TORCH:
            return _TORCH
        if self is Preload.TRAINERS:
            return (
                *_TORCH,
                "transformers",
                "transformers.trainer",
                "transformers.models.bert.modeling_bert",
                "transformers.models.gpt2.modeling_gpt2",
                "lightning.pytorch",
                "accelerate",
            )
        return (*_TESTING, "preloaded_keras")

    @property
    def variables(self) -> dict[str, str]:
        """What a server of this kind needs in its environment, since its libraries read it once.

        One thread per rank: ranks outnumber cores in most tests, and a team of threads per rank
        would only fight over them.
        """
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
        return {
            "OMP_NUM_THREADS": "1",
            **({} if self in (Preload.TORCH, Preload.TRAINERS) else quiet),
            **({"TF_USE_LEGACY_KERAS": "1"} if self is Preload.LEGACY_KERAS else {}),
        }

    @property
    def num_servers(self) -> int:
        """How many servers the ranks of one run are forked from, in turn.

        Processes of one server have its hash seed and its addresses: ranks that go through a set of
        names in its order, or send one another addresses, would do well in tests alone.
        """
        return 2 if self is Preload.TORCH else 1


class Process(Protocol):
    """A process that leads a process group of its own."""

    pid: int

    def exit_code(self) -> int | None:
        """None while it runs; a negative code is the signal that ended it."""


class _Forked:
    """One that a server has forked. To close its connection, or to end this process, kills it."""

    def __init__(self, connection: socket.socket, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._exit_code: int | None = None
        data = _receive(connection)
        if len(data) < 4:
            raise RuntimeError(server.why_gone())
        (self.pid,) = struct.unpack("<i", data)
        connection.setblocking(False)

    def exit_code(self) -> int | None:
        if self._exit_code is None:
            try:
                data = _receive(self._connection)
            except BlockingIOError:
                return None
            if len(data) < 4:
                raise RuntimeError(self._server.why_gone())
            (self._exit_code,) = struct.unpack("<i", data)
            self._connection.close()
        return self._exit_code


class _Interpreter:
    """One that was started as an interpreter of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid: int = process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()


class Server:
    """A process that has imported the modules of `preload`, and forks on request.

    Whoever has its folder can use it. It ends with the lifeline that it was started with.
    """

    def __init__(self, preload: Preload, folder: Path, process: subprocess.Popen[bytes] | None):
        self._preload = preload
        self._folder = folder
        self._process = process  # None if another process has started it
        self.python = folder / "python"
        self.environ: dict[str, str] = marshal.loads((folder / "environ").read_bytes())
        self._birth = _Birth.read(folder)
        self._pidfd = self._birth.open()

    @classmethod
    def start(cls, preload: Preload, folder: Path, run: Run) -> Server:
        """A new one, for which it makes this folder."""
        folder.mkdir()
        environ = {**run.environ, **preload.variables}
        own = os.sched_getaffinity(0)
        lifeline = os.open(run.lifeline, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener, (folder / "output").open("wb") as output:
            listener.bind(str(folder / "socket"))
            listener.listen(128)  # so that nobody needs to wait for the server before connecting
            numbers = (listener.fileno(), lifeline)
            try:
                os.sched_setaffinity(0, run.affinity)  # it works for all workers
                process = subprocess.Popen(
                    [
                        sys.executable,
                        str(_SERVER),
                        *map(str, numbers),
                        str(folder),
                        *preload.modules,
                    ],
                    env=environ,
                    pass_fds=numbers,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    process_group=0,
                )
            finally:
                os.sched_setaffinity(0, own)
                os.close(lifeline)
        (folder / "environ").write_bytes(marshal.dumps(environ))
        _write_python(folder, environ)
        _Birth.of(process.pid).write(folder)  # the last file: with it the folder is complete
        return cls(preload, folder, process)

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Process:
        """A process that becomes what `request` says (`preloaded_server.Request`)."""
        data = marshal.dumps(request)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._folder / "socket"))
        except ConnectionRefusedError:
            raise RuntimeError(self.why_gone()) from None
        data = struct.pack("<q", len(data)) + data
        with contextlib.suppress(BrokenPipeError):  # its absence is told by what follows
            sent = socket.send_fds(connection, [data[:4096]], list(descriptors))
            connection.sendall(data[sent:])
        return _Forked(connection, self)

    def can_be(self, argv: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Whether a process of this server can be `python *argv` with these variables."""
        reasons = obstacles(argv, environ, early(self.environ))
        if reasons:
            note(str(self._folder / _AFRESH), reasons)
        return not reasons

    @property
    def has_ended(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        return self._pidfd is None or _is_readable(self._pidfd, seconds)

    def why_gone(self) -> str:
        """What to say of a server that has closed its connection."""
        self.wait(10)  # it closes its connections a moment before it has ended
        status = "" if self._process is None else f" with status {self._process.poll()}"
        return (
            f"the server of processes with {self._preload.value} has ended{status}, and its"
            " processes with it. Its output:\n"
            + (self._folder / "output").read_text(errors="replace")[-6000:]
        )


class _Birth(NamedTuple):
    """Which process it is: numbers are used again, and soon where there are few."""

    pid: int
    start: str  # field 22 of /proc/PID/stat

    @classmethod
    def of(cls, pid: int) -> _Birth:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return cls(pid, stat.rpartition(")")[2].split()[19])

    @classmethod
    def read(cls, folder: Path) -> _Birth:
        pid, start = (folder / _PROCESS).read_text().split()
        return cls(int(pid), start)

    def write(self, folder: Path) -> None:
        part = folder / "part"  # of another name: nobody reads it half-written
        part.write_text(f"{self.pid} {self.start}")
        part.rename(folder / _PROCESS)

    def open(self) -> int | None:
        """A descriptor of the process, readable once it has ended; None if it is gone."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        with contextlib.suppress(OSError):
            if _Birth.of(self.pid) == self:
                return pidfd
        os.close(pidfd)
        return None


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _write_python(folder: Path, environ: Mapping[str, str]) -> None:
    text = (_HERE / "preloaded_python.py").read_text()
    for name, value in (
        ("@REAL@", sys.executable),
        ("@LIBRARIES@", f"{sys.prefix}/lib"),
        ("@ADDRESS@", str(folder / "socket")),
        ("@AFRESH@", str(folder / _AFRESH)),
        ("@ENVIRON@", early(environ)),
        ("@PLACE@", place()),
    ):
        text = text.replace(f'"{name}"', repr(value))
    path = folder / "python"
    path.write_text(f"#!{os.path.realpath(sys.executable)} -ISE\n{text}")
    path.chmod(0o755)


class Run:
    """A folder with the servers of a test run, for all workers of pytest-xdist.

    The process that makes it ends them, and removes it, when it ends itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lifeline = folder / "lifeline"
        self.environ: dict[str, str]
        self.affinity: list[int]
        self.environ, self.affinity = marshal.loads((folder / "start").read_bytes())

    @classmethod
    @functools.cache
    def current(cls) -> Run:
        """The one that this process has been told of; else a new one, which it tells others of."""
        if (known := os.environ.get(_VARIABLE)) is not None:
            return cls(Path(known))
        folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
        # What a test has set meanwhile would be there for all others.
        start = (dict(os.environ), list(os.sched_getaffinity(0)))
        (folder / "start").write_bytes(marshal.dumps(start))
        os.mkfifo(folder / "lifeline")
        run = cls(folder)
        # Nobody reads it here, but without a reader one cannot open it for writing.
        atexit.register(run._end, os.open(run.lifeline, os.O_RDWR), os.getpid())
        os.environ[_VARIABLE] = str(folder)
        return run

    def server(self, preload: Preload, number: int) -> Server:
        """Its server of this kind and number, started if there is none."""
        name = f"{preload.name}-{number}"
        with (self.folder / name).open("ab") as count:  # a byte for each that was to be started
            fcntl.flock(count, fcntl.LOCK_EX)
            last = os.fstat(count.fileno()).st_size
            folder = self.folder / f"{name}.{last}"
            if (folder / _PROCESS).exists():
                known = Server(preload, folder, None)
                if not known.has_ended:
                    return known
            count.write(b".")
            count.flush()
            return Server.start(preload, self.folder / f"{name}.{last + 1}", self)

    def spent_s(self) -> float:
        """Processor time of processes that were forked for this worker and have ended, seconds."""
        return sum(
            struct.unpack("<d", path.read_bytes())[0]
            for path in self.folder.glob(f"*/{SPENT}{worker(os.environ)}")
        )

    def afresh(self) -> collections.Counter[str]:
        """How many processes none of its servers could be, by the reasons."""
        texts = (path.read_text() for path in self.folder.glob(f"*/{_AFRESH}"))
        return collections.Counter(line for text in texts for line in text.splitlines())

    def pids(self) -> list[int]:
        """Process ids of all servers that were started."""
        return [birth.pid for birth in self._births()]

    def _births(self) -> list[_Birth]:
        return [_Birth.read(path.parent) for path in self.folder.glob(f"*/{_PROCESS}")]

    def _end(self, lifeline: int, owner: int) -> None:
        """Ends the servers as our own end would, and their processes; nothing is left then."""
        if os.getpid() != owner:  # a forked child of ours ends
            return
        pidfds = [pidfd for birth in self._births() if (pidfd := birth.open()) is not None]
        os.close(lifeline)
        deadline = time.monotonic() + 10
        for pidfd in pidfds:
            # One that still imports does not look, nor while a forked child of ours holds on.
            if not _is_readable(pidfd, max(deadline - time.monotonic(), 0)):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _is_readable(pidfd, 10)
        shutil.rmtree(self.folder, ignore_errors=True)


def _receive(connection: socket.socket) -> bytes:
    """Four bytes, or fewer from a server that has ended."""
    try:
        return connection.recv(4)
    except ConnectionResetError:
        return b""


_servers: dict[tuple[Preload, int], Server] = {}


def server(preload: Preload, number: int = 0) -> Server:
    """The run's server for these modules; started by the first call.

    One that has ended failed the test that used it. The others get a new one, and a warning.
    """
    key = preload, number % preload.num_servers
    known = _servers.get(key)
    if known is None or known.has_ended:
        if known is not None:
            warnings.warn(known.why_gone(), stacklevel=2)
        known = _servers[key] = Run.current().server(*key)
    return known


def python(preload: Preload = Preload.TORCH) -> str:
    """The path of an executable to use as `python`: a preloaded one unless the test is `fresh`."""
    return sys.executable if _Switch.is_fresh else str(server(preload).python)


def start_call(
    preload: Preload,
    function: Callable[..., Any],
    *arguments: Any,
    number: int,
    variables: Mapping[str, str],
    output: int,
) -> Process:
    """Have a new process call this, in our folder; it ends when that returns.

    Args:
        preload: what it finds imported.
        function: of a module that the process can import by our `sys.path`; pickled.
        arguments: passed on; pickled.
        number: the rank; those with even and with odd ones come from different servers.
        variables: what it finds in its environment beside ours.
        output: the descriptor to which its output and errors go.
    """
    environ = {**os.environ, **variables}
    request = _request(
        environ, path=sys.path, call=pickle.dumps((function, arguments)), descriptors=[1, 2]
    )
    if not _Switch.is_fresh and server(preload, number).can_be(["-m", "function"], environ):
        return server(preload, number).fork(request, [output, output])
    with tempfile.TemporaryFile() as file:
        file.write(marshal.dumps(request))
        file.seek(0)
        return _Interpreter(
            subprocess.Popen(
                [sys.executable, str(_SERVER), "--once"],
                stdin=file,
                stdout=output,
                stderr=output,
                env={**preload.variables, **environ},
                process_group=0,
            )
        )


def start_script(
    preload: Preload,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    output: int,
    enter: Callable[[], None] | None = None,
) -> Process:
    """Start `python *argv`, its output and errors to the descriptor `output`.

    `enter` is called in the new process first. With it the interpreter is one of its own, as in
    tests marked `fresh`.
    """
    if not _Switch.is_fresh and enter is None and server(preload).can_be(argv, environ):
        with open(os.devnull, "rb") as nothing:
            request = _request(environ, argv=list(argv), descriptors=[0, 1, 2])
            return server(preload).fork(request, [nothing.fileno(), output, output])
    return _Interpreter(
        subprocess.Popen(
            [sys.executable, *argv],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=enter,
            process_group=0,
        )
    )


def _request(environ: Mapping[str, str], **fields: Any) -> dict[str, Any]:
    return {
        "argv": [],
        "environ": dict(environ),
        "folder": os.getcwd(),
        "path": None,
        "executable": None,
        "affinity": list(os.sched_getaffinity(0)),
        "descriptors": [],
        "call": None,
        **fields,
    }


class _Switch:
    """Whether the test that runs now is marked `fresh`; tests/conftest.py sets it."""

    is_fresh = False


def start_fresh(is_fresh: bool) -> None:
    """Have what follows start interpreters, or preloaded processes again."""
    _Switch.is_fresh = is_fresh
