# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The program behind `preloaded.py`: imports modules once, then forks a process per request.

    python preloaded_server.py SOCKET LIFELINE FOLDER MODULE...
    python preloaded_server.py --once                        # one request, on standard input

SOCKET and LIFELINE are numbers of descriptors: a listening Unix socket, and a pipe whose other end
the owner keeps open for as long as the server is to live. In FOLDER a file per worker of
pytest-xdist says what its processes have cost. A request is one connection:

    client:  length (8 bytes), a request (marshal), with descriptors attached to the first byte
    server:  process id (4 bytes), as soon as the process is there
             exit code (4 bytes; negative: the signal), once the process has ended

If the client closes the connection before that, the process and its process group are killed. So
neither a killed client nor a killed owner leaves a process behind.

The fork happens between two requests, with one thread and no descriptor of the server's in the way.
The forked process *returns* from `_serve()` and becomes what was asked for on the bare stack of
this program's main module, so that it ends as a Python process ends.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import fcntl
import gc
import importlib
import marshal
import os
import pickle
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

# Descriptors of the server start here, so that a process can get what it is given at any number
# that its client had it at.
_FIRST_DESCRIPTOR = 400
_MAX_DESCRIPTORS = 250
_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 10.0  # with a client that has connected and sends nothing: all others wait meanwhile
SPENT = "spent-"  # and a worker: name of a file with seconds of processor time, a double


class Request(TypedDict):
    """What the forked process is to be.

    `call` is a pickled function with its arguments, or None: then `argv` is what follows `python`
    on a command line. `executable` is what such a script finds as `sys.executable`; `descriptors`
    are the numbers that the descriptors sent along are to have.
    """

    argv: list[str]
    environ: dict[str, str]
    folder: str
    path: list[str] | None
    executable: str | None
    affinity: list[int]
    descriptors: list[int]
    call: bytes | None


def worker(environ: Mapping[str, str]) -> str:
    """For which worker of pytest-xdist a process with these variables runs."""
    return environ.get("PYTEST_XDIST_WORKER", "main")


class _Spent:
    """Processor time that workers' processes have spent, seconds, in a file for each worker."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seconds: collections.Counter[str] = collections.Counter()

    def add(self, name: str, usage: resource.struct_rusage) -> None:
        """What a process of worker `name` has used, and what it has waited for."""
        self._seconds[name] += usage.ru_utime + usage.ru_stime
        path, part = f"{self._folder}/{SPENT}{name}", f"{self._folder}/part-{name}"
        with contextlib.suppress(OSError):  # a full disk is no reason to end all that run
            with open(part, "wb") as file:  # of another name: nobody reads it half-written
                file.write(struct.pack("<d", self._seconds[name]))
            os.rename(part, path)


class _Child:
    def __init__(self, pid: int, connection: socket.socket, worker: str) -> None:
        self.pid = pid
        self.connection = connection
        self.worker = worker
        self.pidfd = _high(os.pidfd_open(pid))
        self.numbers = (connection.fileno(), self.pidfd)

    def end(self) -> None:
        """Kill it with its process group; the pidfd then tells that it has ended."""
        for kill, number in ((os.killpg, self.pid), (os.kill, self.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(number, signal.SIGKILL)

    def tell(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the client may have gone; its end comes with the poll
            self.connection.sendall(struct.pack("<i", number))

    def report(self, spent: _Spent) -> None:
        _, status, usage = os.wait4(self.pid, 0)
        spent.add(self.worker, usage)
        self.tell(os.waitstatus_to_exitcode(status))
        self.close()

    def close(self) -> None:
        self.connection.close()
        os.close(self.pidfd)


def _serve(listener: socket.socket, lifeline: int, spent: _Spent) -> Request:
    """Answers requests; returns in each forked process, and never in the server itself."""
    children: dict[int, _Child] = {}  # by both of their descriptors
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    while True:
        # New requests last: their descriptors may get numbers that this round still speaks of.
        for descriptor, _ in sorted(poll.poll(), key=lambda event: event[0] == listener.fileno()):
            if descriptor == lifeline:
                for child in children.values():
                    child.end()
                os._exit(0)
            if descriptor == listener.fileno():
                received = _receive(listener)
                if received is None:
                    continue
                request, descriptors, connection = received
                try:
                    pid = os.fork()
                except OSError:  # the client learns it; what runs already goes on
                    connection.close()
                    for number in descriptors:
                        os.close(number)
                    continue
                if pid == 0:
                    for child in {id(child): child for child in children.values()}.values():
                        child.close()
                    for number in (listener.detach(), connection.detach(), lifeline):
                        os.close(number)
                    _become(request, descriptors)
                    return request
                for number in descriptors:
                    os.close(number)
                child = _Child(pid, connection, worker(request["environ"]))
                child.tell(pid)
                for number in child.numbers:
                    children[number] = child
                    poll.register(number, select.POLLIN)
            elif (child := children.get(descriptor)) is not None:
                if descriptor != child.pidfd:  # only its closing makes a connection readable
                    poll.unregister(descriptor)
                    child.end()
                    continue
                for number in child.numbers:
                    del children[number]
                    with contextlib.suppress(KeyError):
                        poll.unregister(number)
                child.report(spent)


def _receive(listener: socket.socket) -> tuple[Request, list[int], socket.socket] | None:
    """The next request, its descriptors and its connection; None if the client went away."""
    accepted, _ = listener.accept()
    connection = socket.socket(fileno=_high(accepted.detach()))
    connection.settimeout(_PATIENCE_S)
    descriptors: list[int] = []
    try:
        data, received, _, _ = socket.recv_fds(connection, 1 << 16, _MAX_DESCRIPTORS)
        descriptors = [_high(descriptor) for descriptor in received]
    except TimeoutError:
        data = b""
    while len(data) < 8 or len(data) < 8 + struct.unpack_from("<q", data)[0]:
        try:
            more = connection.recv(1 << 20)
        except TimeoutError:
            more = b""
        if not more:
            connection.close()
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        data += more
    connection.settimeout(None)
    return marshal.loads(data[8:]), descriptors, connection


def _high(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    os.close(descriptor)
    return moved


def _become(request: Request, descriptors: list[int]) -> None:
    """Take on what a process is given when it is started, instead of what was forked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # does not outlive the server
    os.setpgid(0, 0)
    for descriptor, number in zip(descriptors, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    os.sched_setaffinity(0, request["affinity"])
    if request["path"] is not None:
        sys.path[:] = request["path"]
    # What every interpreter has of its own. Ranks with the same random numbers would have the same
    # weights, whether they are broadcast or not. Python gives `random` new ones by itself.
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    tempfile.tempdir = None  # TMPDIR may be another one


def run_request(request: Request) -> None:
    """Be the process that was asked for; may not return."""
    if request["call"] is None:
        _run_command(request)
        return
    code = 1
    try:
        function: Callable[..., Any]
        function, arguments = pickle.loads(request["call"])
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()  # nobody sees it otherwise, as the process ends here
    finally:
        # As an interpreter ends: threads are waited for, and what is registered for the exit runs.
        # It is not taken apart, which takes longer than most calls.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_command(request: Request) -> None:
    """`python *argv`, as far as `preloaded_python.py` lets it come here."""
    for stream in (sys.stdout, sys.stderr):
        is_line_by_line = stream.isatty() or stream is sys.stderr
        is_immediate = bool(request["environ"].get("PYTHONUNBUFFERED"))
        stream.reconfigure(line_buffering=is_line_by_line, write_through=is_immediate)  # type: ignore[union-attr]
    if request["executable"] is not None:
        sys.executable = request["executable"]
    argv = request["argv"]
    if argv[0] == "-u":
        argv = argv[1:]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    added = [word for word in request["environ"].get("PYTHONPATH", "").split(":") if word]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    main.__dict__["__builtins__"] = __builtins__
    if argv[0] == "-m":
        sys.argv = [argv[1], *argv[2:]]
        sys.path[:0] = [os.getcwd(), *added]
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        sys.path[:0] = ["", *added]
        exec(compile(argv[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.argv = list(argv)
        main.__file__ = path = os.path.abspath(argv[0])  # not resolved: as Python does it
        sys.path[:0] = [os.path.dirname(os.path.realpath(argv[0])), *added]
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)  # no __future__ of ours
        exec(code, main.__dict__)


def _main() -> None:
    if sys.argv[1] == "--once":  # an interpreter of its own that is to be one process
        request: Request = marshal.loads(sys.stdin.buffer.read())
        sys.path[:] = request["path"] or sys.path
        assert request["call"] is not None
        function, arguments = pickle.loads(request["call"])
        function(*arguments)
        return  # and the interpreter ends as interpreters do
    listener = socket.socket(fileno=_high(int(sys.argv[1])))
    lifeline = _high(int(sys.argv[2]))
    spent = _Spent(sys.argv[3])
    ours = os.path.dirname(os.path.abspath(__file__))
    # Without this program's own folder, which Python puts first, and without what our PYTHONPATH
    # adds: each process has one of its own.
    own = {os.path.abspath(word) for word in os.environ.get("PYTHONPATH", "").split(":") if word}
    path = [entry for entry in sys.path[1:] if os.path.abspath(entry) not in own]
    sys.path[:0] = [ours, os.path.dirname(os.path.dirname(ours))]
    for module in sys.argv[4:]:
        importlib.import_module(module)
    sys.path[:] = path
    # What is here now is old from now on: to look for garbage among it would copy every page, and
    # happens only if a test asks for it. With gc.freeze() it would not even then; but garbage that
    # hangs together with something frozen stays, and there are tests that count.
    gc.collect()
    # Nor does a process take back, one by one, the operators that torch has registered here: that
    # would be a third of what a short one costs.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    run_request(_serve(listener, lifeline, spent))


if __name__ == "__main__":
    _main()
