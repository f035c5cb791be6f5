# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that find torch, or TensorFlow, already imported.

    process = start_call(Preload.TORCH, function, *arguments)     # as a rank of the harness
    subprocess.run([python(), "train.py"])                        # as a script that a user runs

Starting an interpreter and importing torch costs 2 to 3 seconds of a processor, TensorFlow 3 to 4;
most tests are not about that. A server per set of libraries imports them once, and forks a process
per request (`preloaded_server.py`), which takes some 0.04 s. Each is a process of its own:
whatever a test does to its libraries, environment or descriptors ends with it.

A test whose subject is the start or the end of an interpreter is marked `fresh`: both ways then
start real ones. One test at least of each folder is. What a server cannot do for a process, such as
an option of the interpreter's or a variable that a library has read by then, starts a real one too.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import marshal
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from preloaded_python import early, is_possible, place

_HERE = Path(__file__).resolve().parent
_SERVER = _HERE / "preloaded_server.py"
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
    """A process that has imported the modules of `preload`, and forks on request."""

    def __init__(self, preload: Preload) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
        self._owner = os.getpid()
        atexit.register(self._end)
        self._preload = preload
        self._address = str(self.folder / "socket")
        self._output = self.folder / "output"
        self.environ = {**os.environ, **preload.variables}
        with socket.socket(socket.AF_UNIX) as listener, self._output.open("wb") as output:
            listener.bind(self._address)
            listener.listen(128)  # so that nobody needs to wait for the server before connecting
            read, self._lifeline = os.pipe()
            passed = (listener.fileno(), read)
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), *map(str, passed), *preload.modules],
                env=self.environ,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
            os.close(read)
        self.python = self._write_python()

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Process:
        """Have a process forked that becomes what `request` says (`preloaded_server.Request`)."""
        data = marshal.dumps(request)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._address)
        except ConnectionRefusedError:
            raise RuntimeError(self.why_gone()) from None
        data = struct.pack("<q", len(data)) + data
        with contextlib.suppress(BrokenPipeError):  # its absence is told by what follows
            sent = socket.send_fds(connection, [data[:4096]], list(descriptors))
            connection.sendall(data[sent:])
        return _Forked(connection, self)

    def can_be(self, argv: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Whether a process of this server can be `python *argv` with these variables."""
        return bool(is_possible(argv, environ, early(self.environ)))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def why_gone(self) -> str:
        """What to say of a server that has closed its connection."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)  # it closes its connections a moment before it has ended
        return (
            f"the server of processes with {self._preload.value} has ended with status"
            f" {self._process.returncode}, and its processes with it. Its output:\n"
            + self._output.read_text(errors="replace")[-6000:]
        )

    def _end(self) -> None:
        """Ends it as our own end would, and its processes with it; nothing of it is left then."""
        if os.getpid() != self._owner:  # a forked child of ours ends
            return
        os.close(self._lifeline)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # it still imports, or a forked child of ours holds on
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_python(self) -> Path:
        path = self.folder / "python"
        text = (_HERE / "preloaded_python.py").read_text()
        for name, value in (
            ("@REAL@", sys.executable),
            ("@ADDRESS@", self._address),
            ("@ENVIRON@", early(self.environ)),
            ("@PLACE@", place()),
        ):
            text = text.replace(f'"{name}"', repr(value))
        text = f"#!{os.path.realpath(sys.executable)} -ISE\n{text}"
        path.write_text(text)
        path.chmod(0o755)
        return path


def _receive(connection: socket.socket) -> bytes:
    """Four bytes, or fewer from a server that has ended."""
    try:
        return connection.recv(4)
    except ConnectionResetError:
        return b""


_servers: dict[tuple[Preload, int], Server] = {}


def server(preload: Preload, number: int = 0) -> Server:
    """A server of this process for these modules; started by the first call.

    One that has ended failed the test that used it. The others get a new one, and a warning.
    """
    key = preload, number % preload.num_servers
    known = _servers.get(key)
    if known is None or known.has_ended:
        if known is not None:
            warnings.warn(known.why_gone(), stacklevel=2)
        known = _servers[key] = Server(preload)
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
        return server(preload, number).start(request, [output, output])
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
            return server(preload).start(request, [nothing.fileno(), output, output])
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
