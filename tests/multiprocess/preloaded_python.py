# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A `python` that does not start an interpreter: it asks a preloaded one to be it.

`preloaded.py` writes this file out as an executable, with the values in capitals filled in. It must
start quickly, so it imports next to nothing. What it cannot have done elsewhere, such as an option
of the interpreter's own, it leaves to the real one.
"""

import _socket
import marshal
import os
import signal
import struct
import sys

REAL = "@REAL@"  # the interpreter
LIBRARIES = "@LIBRARIES@"  # the folder with libraries of the environment that it is of
ADDRESS = "@ADDRESS@"  # of the server's socket
AFRESH = "@AFRESH@"  # the file where those are noted that became the interpreter
ENVIRON = "@ENVIRON@"  # what the server was started with of the variables below
PLACE = "@PLACE@"  # where and with which rights and limits it runs
# Read when an interpreter starts, or when a library is loaded: the server has done both.
EARLY = (
    "PYTHON",
    "LD_",
    "OMP_",
    "KMP_",
    "MKL_",
    "GOMP_",
    "ATEN_",
    "DNNL_",
    "ONEDNN_",
    "TORCH_",
    "TORCHDYNAMO_",
    "PYTORCH_JIT",
    "TF_",
    "KERAS_BACKEND",
    "LOGLEVEL",
    "HF_",
    "TRANSFORMERS_",
    "LANG",
    "LC_",
    "TZ",
)
LATE = ("TORCHELASTIC", "TORCH_NCCL")  # read when they are used
UNIMPORTANT = ("TF_CPP_MIN_LOG_LEVEL=", "TF_USE_LEGACY_KERAS=0")  # what is logged; the default
TAKEN_ON = ("PYTHONPATH", "PYTHONUNBUFFERED")
FORWARDED = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "WINCH", "CONT")


def early(environ):
    environ = dict(environ)
    # mpirun puts the folder that it is in there, which is that of the server's interpreter.
    folders = environ.pop("LD_LIBRARY_PATH", "").split(":")
    others = [folder for folder in folders if folder and folder != LIBRARIES]
    return {
        **({"LD_LIBRARY_PATH": ":".join(others)} if others else {}),
        **_early(environ),
    }


def _early(environ):
    return {
        name: text
        for name, text in environ.items()
        if name.startswith(EARLY)
        and name not in TAKEN_ON
        and not name.startswith(LATE)
        and not f"{name}={text}".startswith(UNIMPORTANT)
    }


def place():
    """What a process has of those that started it, and that a request does not pass on.

    A shell's `ulimit`, `umask` and `trap ""`, nohup, unshare: the server knows nothing of them.
    """
    with open("/proc/self/status") as file:
        kept = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapBnd", "NoNewP", "Seccomp")
        status = [line for line in file if line.startswith(kept)]
    with open("/proc/self/limits") as file:
        limits = file.read()
    names = sorted(name for name in os.listdir("/proc/self/ns") if not name.endswith("_children"))
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in names]
    return [*status, limits, *spaces, os.readlink("/proc/self/root")]


def obstacles(argv, environ, server_environ):
    """Why a preloaded interpreter cannot be `python *argv`; empty if it can."""
    here = early(environ)
    names = {*here, *server_environ}
    reasons = sorted(name for name in names if here.get(name) != server_environ.get(name))
    rest = argv[1:] if argv[:1] == ["-u"] else argv
    is_program = not rest[0].startswith("-") if rest else False
    if not is_program and not (rest[:1] in (["-m"], ["-c"]) and len(rest) > 1):
        reasons.append("an option")
    return reasons


def note(path, reasons):
    """Of a process that starts afresh: many of them make a test run slow."""
    try:
        notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.write(notes, f"{', '.join(reasons)}\n".encode())
        os.close(notes)
    except OSError:
        pass  # no room for it, or no right to write there; it is a number of a table


def receive(server):
    try:
        data = server.recv(4)
    except ConnectionResetError:
        data = b""
    if len(data) < 4:
        end_with_the_server()
    return struct.unpack("<i", data)[0]


def end_with_the_server():
    """In a way that a test does not take for the end of its script."""
    os.write(2, b"the server of preloaded processes has ended, and this process with it\n")
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    argv = sys.argv[1:]
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    descriptors = [number for number in descriptors if os.path.exists(f"/proc/self/fd/{number}")]
    has_streams = {0, 1, 2} <= set(descriptors)  # a server could not take one away
    reasons = obstacles(argv, os.environ, ENVIRON)
    if not has_streams:
        reasons.append("a closed stream")
    if place() != PLACE:
        reasons.append("rights and limits")
    if reasons:
        note(AFRESH, reasons)
        os.execv(REAL, [REAL, *argv])
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    request = marshal.dumps(
        {
            "argv": argv,
            "environ": dict(os.environ),
            "folder": os.getcwd(),
            "path": None,
            "executable": os.path.abspath(__file__),
            "affinity": list(os.sched_getaffinity(0)),
            "descriptors": descriptors,
            "call": None,
        }
    )
    data = struct.pack("<q", len(request)) + request
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    try:
        server.connect(ADDRESS)
        sent = server.sendmsg([data[:4096]], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        server.sendall(data[sent:])
    except OSError:
        end_with_the_server()
    pid = receive(server)

    def forward(number, frame):
        try:  # noqa: SIM105 -- contextlib takes long to import
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    for name in FORWARDED:
        number = getattr(signal, f"SIG{name}")
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    code = receive(server)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
