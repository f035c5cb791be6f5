# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One order about Ray on this machine: `python -m ...backends.ray.node`, over SSH.

The order is a line of JSON on standard input, the answer one on standard output.

`ray start` leaves daemons behind, of which each has a mark in its environment, and so has whatever
they start. By the mark they are found, and no other Ray is touched. `ray stop` would end all that
it finds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from smdistributed._common.version import __version__
from smdistributed.launch.courier.network import own_address

__all__ = ["BEGIN", "MARK", "Action", "Answer", "Order", "end_marked", "marked"]

MARK = "SMD_RAY_CLUSTER"
"""Variable of all processes of a cluster that `smd` has started: its id."""

BEGIN = "SMD-NODE:"
"""An answer begins with it; before it a shell may print what it likes."""

_GRACE_S = 10.0
_KILLED_S = 10.0
_LOOK_S = 0.05
_CONNECT_S = 5.0
_LAST_LINES = 8


class Action(enum.StrEnum):
    """What is to be done here."""

    LOOK = enum.auto()
    START = enum.auto()
    END = enum.auto()


@dataclasses.dataclass(frozen=True)
class Order:
    """What is asked of a machine.

    Attributes:
        action: what is to be done.
        cluster: its id; names the mark and the folder.
        address: of this machine, as the other nodes reach it; empty: it is to find out.
        ports: that have to be free here, or, of `start`, at which the head has to be reached.
        head: address of the head; empty: this is the head.
        options: of `ray start`.
        token: that Ray asks everybody for.
        timeout_s: of `ray start`.
    """

    action: Action
    cluster: str
    address: str = ""
    ports: Sequence[int] = ()
    head: str = ""
    options: Sequence[str] = ()
    token: str = ""
    timeout_s: float = 60.0

    def to_json(self) -> bytes:
        """A line."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def of_json(cls, line: str) -> Order:
        """Of a line.

        Raises:
            ValueError, LookupError, TypeError: it is none.
        """
        given = json.loads(line)
        order = cls(**{**given, "action": Action(given["action"])})
        if not re.fullmatch("[0-9a-f]+", order.cluster):  # a folder of that name is removed
            raise ValueError(f"{order.cluster!r:.100} names no cluster")
        return order


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a machine says.

    Attributes:
        problem: why it was not done; empty: it was.
        version: of this package.
        ray: its version.
        python: its version.
        address: as the other nodes reach this machine.
        num_ended: how many processes were ended.
    """

    problem: str = ""
    version: str = __version__
    ray: str = ""
    python: str = ""
    address: str = ""
    num_ended: int = 0

    def to_json(self) -> str:
        """A line."""
        return BEGIN + json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Answer | None:
        """Of all that was printed; None: there is none."""
        for line in text.splitlines():
            if line.startswith(BEGIN):
                with contextlib.suppress(ValueError, TypeError):
                    return cls(**json.loads(line[len(BEGIN) :]))
        return None


# --- what is marked -------------------------------------------------------------------------------


def marked(cluster: str) -> dict[int, str]:
    """Processes of this user that have the mark of a cluster, this one excepted.

    Returns: by number, when each began, by the kernel's clock.
    """
    entry = f"\0{MARK}={cluster}\0".encode()
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and entry in b"\0" + path.read_bytes() + b"\0":
                found[pid] = _began(pid)
    return found


def _began(pid: int) -> str:
    # The name, which is in parentheses, may have anything in it.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def end_marked(cluster: str) -> int:
    """Ends what has the mark of a cluster: SIGTERM, and SIGKILL some seconds later.

    Returns: how many processes there were.

    Raises:
        TimeoutError: some do not end.
    """
    began_s = time.monotonic()
    told: set[tuple[int, str]] = set()
    num_empty = 0
    while num_empty < 2:  # while one looks, a process may start another and end
        found = marked(cluster)
        num_empty = 0 if found else num_empty + 1
        passed_s = time.monotonic() - began_s
        if found and passed_s > _GRACE_S + _KILLED_S:
            raise TimeoutError(f"processes {', '.join(map(str, sorted(found)))} do not end")
        for pid, began in found.items():
            with contextlib.suppress(OSError):
                if (passed_s > _GRACE_S or (pid, began) not in told) and _began(pid) == began:
                    os.kill(pid, signal.SIGKILL if passed_s > _GRACE_S else signal.SIGTERM)
            told.add((pid, began))
        time.sleep(_LOOK_S)
    return len(told)


# --- orders ---------------------------------------------------------------------------------------


def _folder_of(cluster: str) -> Path:
    """Ray's temporary folder. A short path, as it has sockets; not in that of another Ray."""
    return Path("/tmp", f"smd-ray-{cluster}")


def _look(order: Order) -> Answer:
    address = order.address or own_address()
    found = Answer(ray=_version_of_ray(), python=platform.python_version(), address=address)
    return dataclasses.replace(found, problem=_why_not(found, order.ports))


def _version_of_ray() -> str:
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _why_not(found: Answer, ports: Sequence[int]) -> str:
    if not found.ray:
        return (
            f"Ray is missing in {sys.executable}; expected it there, beside this package:"
            " pip install 'smdistributed-open[ray]'"
        )
    if importlib.util.find_spec("aiohttp_cors") is None:
        return (
            f"Ray in {sys.executable} has no dashboard, which takes jobs; expected it:"
            " pip install 'smdistributed-open[ray]'"
        )
    for port in (0, *ports):
        try:
            socket.create_server((found.address, port), family=_family(found.address)).close()
        except OSError as error:
            what = f"port {port} of {found.address}" if port else f"the address {found.address}"
            return f"{what} cannot be used: {os.strerror(error.errno or 0)}"
    return ""


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _start(order: Order) -> Answer:
    folder = _folder_of(order.cluster)
    try:
        folder.mkdir(mode=0o700)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(order.token)
        problem = _why_apart(order) or _ray_start(order, folder)
    except OSError as error:
        problem = str(error)
    if problem:
        with contextlib.suppress(TimeoutError):
            end_marked(order.cluster)
    return Answer(problem)


def _why_apart(order: Order) -> str:
    for port in order.ports:
        try:
            socket.create_connection((order.head, port), _CONNECT_S).close()
        except OSError as error:
            return f"the head cannot be reached from here, at {order.head} port {port}: {error}"
    return ""


def _ray_start(order: Order, folder: Path) -> str:
    """Returns: why it has failed; empty: it has not."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    environ |= {
        MARK: order.cluster,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        # Jobs call `python`: that is to be this one.
        "PATH": f"{Path(sys.executable).parent}:{environ.get('PATH', os.defpath)}",
    }
    command = [sys.executable, "-m", "ray.scripts.scripts"]
    log = folder / "start.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "start", f"--temp-dir={folder}", *order.options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )
        try:
            status = process.wait(order.timeout_s)
        except subprocess.TimeoutExpired:
            return f"`ray start` has not ended in {order.timeout_s:.0f} s: {_last_of(log)}"
    return f"`ray start` has failed with status {status}: {_last_of(log)}" if status else ""


def _last_of(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return " ".join([line for line in lines if line][-_LAST_LINES:]) or "it printed nothing"


def _end(order: Order) -> Answer:
    try:
        number = end_marked(order.cluster)
        folder = _folder_of(order.cluster)
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        return Answer(str(error))
    return Answer(num_ended=number)


_ACTIONS = {Action.LOOK: _look, Action.START: _start, Action.END: _end}


def main() -> int:
    """Does what standard input says."""
    order = Order.of_json(sys.stdin.readline())
    print(_ACTIONS[order.action](order).to_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
