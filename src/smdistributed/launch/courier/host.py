# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The courier: `python -m smdistributed.launch.courier.host`, on the machine of a host.

    hello      what this machine is
    place      the files that the agent needs come in
    agent      as on the machine of the job's process; what it writes is told as it grows
    bring      once the job has ended, what lies at /opt/ml, if it is wanted
    close      the folder goes

The job's process says each second that it is there. If it is silent, or the connection is gone,
the ranks are ended and the folder goes: nobody would hear of them any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from smdistributed._common.errors import SmdistributedError
from smdistributed._common.version import __version__
from smdistributed.launch.agent.mounts import available_step
from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Report
from smdistributed.launch.agent.start import start_agent
from smdistributed.launch.agent.strays import end_strays
from smdistributed.launch.contract.archives import pack_directories
from smdistributed.launch.courier.files import Arriving, below, pieces_of
from smdistributed.launch.courier.messages import (
    MARK,
    MOST_BODY,
    AgentEnded,
    Bring,
    Brought,
    Close,
    Decoder,
    EndRanks,
    Hello,
    Message,
    Place,
    ProtocolError,
    Start,
    StillHere,
    Told,
    encoded,
)
from smdistributed.launch.courier.network import interface_of, own_address
from smdistributed.launch.courier.telling import Growth, Tree
from smdistributed.launch.environment import free_port, visible_accelerators
from smdistributed.launch.home import home_directory
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import make_writable
from smdistributed.launch.orphans import adopt_orphans

__all__ = ["MOST_SILENT_S", "STORES", "Courier", "main"]

MOST_SILENT_S = 15.0
"""An end that says nothing for so long is taken for dead."""

STORES = ("checkpoints", "intermediate")
"""Folders below `store`, whose files are kept by the job's process."""

_LOOK_S = 0.1
_STILL_S = 1.0
_LOST_GRACE_S = 5.0
_END_S = 10.0
_PIECES_AT_ONCE = 4
_SWEEP_S = 60.0


class _Lost(Exception):
    """The other end is gone, or silent."""


class Courier:
    """Of one host, for one attempt of a job.

    Args:
        incoming, outgoing: descriptors of the connection.
        folder: its own, which is there.
        address: at which other machines reach this one.
    """

    def __init__(self, incoming: int, outgoing: int, folder: Path, address: str) -> None:
        self._address = address
        self._incoming = incoming
        self._outgoing = outgoing
        self._folder = folder
        self._job = JobDirectory(folder)
        self._inbox: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._outbox = threading.Lock()
        self._heard_at = time.monotonic()
        self._cannot_place = False
        self._host: HostDirectory | None = None
        self._agent: subprocess.Popen[bytes] | None = None
        self._has_told_end = False
        self._told = b""
        self._growth = Growth(folder)
        self._trees: list[Tree] = []
        self._sending: Iterator[Message] | None = None
        self._is_closed = False

    def run(self) -> None:
        """Does all of it. Returns when the other end has closed, or is lost."""
        os.set_blocking(self._outgoing, False)
        self._write(MARK + encoded(self._hello()))
        for target in (self._listen, self._say_still_here):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()
        try:
            while not self._is_closed:
                self._hear(_LOOK_S)
                self._look()
        except (_Lost, ProtocolError) as error:
            print(f"courier: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            self._end_agent()

    def _hello(self) -> Hello:
        step, why = available_step(self._folder)
        ports = {free_port()}
        while len(ports) < 2:
            ports.add(free_port())
        return Hello(
            version=__version__,
            name=os.uname().nodename,
            address=self._address,
            interface=interface_of(self._address),
            folder=str(self._folder),
            num_gpus=visible_accelerators(os.environ),
            ports=list(ports),
            opt_ml=f"{step.value}; {why}" if why else step.value,
        )

    # --- what comes in ---------------------------------------------------------------------------

    def _listen(self) -> None:
        """On a thread of its own: files are written here, all else goes to the other thread."""
        decoder = Decoder()
        arriving = Arriving()
        try:
            while content := os.read(self._incoming, MOST_BODY):
                self._heard_at = time.monotonic()
                for message in decoder.feed(content):
                    if isinstance(message, Place):
                        self._place(arriving, message)
                    elif not isinstance(message, StillHere):
                        self._inbox.put(message)
            self._inbox.put(_Lost("the connection is closed"))
        except Exception as error:
            self._inbox.put(error)
        finally:
            arriving.drop()

    def _place(self, arriving: Arriving, message: Place) -> None:
        """Writes a piece; once that has failed none any more, and it is told once."""
        if self._cannot_place:
            return
        try:
            arriving.add(
                below(self._folder, message.path),
                message.body,
                is_last=message.is_last,
                modified_ns=message.modified_ns,
                mode=message.mode,
            )
        except OSError as error:
            self._cannot_place = True
            self._inbox.put(error)

    def _hear(self, timeout_s: float) -> None:
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        if isinstance(message, OSError):  # a file could not be written: the host cannot run
            self._refuse(
                f"ClientError: what the host needs cannot be written on {os.uname().nodename}:"
                f" {message}; expected room on that disk, below {self._folder.parent}."
            )
        elif isinstance(message, Exception):
            raise message
        elif isinstance(message, Start):
            self._start(message)
        elif isinstance(message, EndRanks):
            self._job_host_end(End(message.why, message.grace_s))
        elif isinstance(message, Bring):
            self._bring(message.names)
        elif isinstance(message, Close):
            self._is_closed = True
        else:
            raise ProtocolError(f"{type(message).__name__} is not for a courier.")

    def _start(self, message: Start) -> None:
        host = HostDirectory(self._job.host(str(below(Path(), message.host))))
        plan = HostDirectory(self._folder).read_plan()
        self._trees = [Tree(store, self._folder / "store" / store) for store in STORES]
        self._job.lock.acquire()  # by which the agent knows that it is not alone
        step, _ = available_step(self._folder)
        try:
            (self._folder / "hosts").mkdir(mode=0o700, exist_ok=True)
            self._agent = start_agent(host, plan, step)
        except (OSError, SmdistributedError) as error:
            self._refuse(f"InternalServerError: the agent of {message.host} cannot start: {error}")
            return
        self._host = host

    def _refuse(self, failure: str) -> None:
        report = Report(Phase.ENDED, failure)
        self._send(Told(json.dumps(dataclasses.asdict(report)).encode()))
        self._send(AgentEnded(1))
        self._has_told_end = True

    def _job_host_end(self, end: End) -> None:
        if self._host is None:
            self._send(AgentEnded(0))
            self._has_told_end = True
            return
        try:
            self._host.ask_to_end(end)
        except OSError:
            if self._agent is not None and self._agent.poll() is None:
                self._agent.terminate()

    # --- what goes out ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Tells what is new; and whether the agent has ended, after all that."""
        if time.monotonic() - self._heard_at > MOST_SILENT_S:
            raise _Lost(f"nothing was heard for {MOST_SILENT_S:g} s")
        has_ended = self._agent is not None and self._agent.poll() is not None
        if self._host is not None and not self._has_told_end:
            self._tell_files(self._host)
            self._tell_stores(is_whole=has_ended)
            if has_ended:
                assert self._agent is not None
                end_strays()
                self._tell_files(self._host)
                self._send(AgentEnded(self._agent.returncode))
                self._has_told_end = True

    def _say_still_here(self) -> None:
        """On a thread of its own: also while something large is packed."""
        told = 0
        with contextlib.suppress(_Lost):
            while not self._is_closed:
                beat = 0
                if self._host is not None:
                    with contextlib.suppress(OSError):
                        beat = self._host.heartbeat.stat().st_mtime_ns
                self._send(StillHere(time.monotonic(), beat not in (0, told), beat != 0))
                told = beat
                time.sleep(_STILL_S)

    def _tell_files(self, host: HostDirectory) -> None:
        files = [host.path / "agent.log", host.log, host.metrics, host.system_metrics]
        with contextlib.suppress(OSError):
            files += sorted((self._folder / "tensorboard" / host.name).iterdir())
        for path in files:
            for message in self._growth.news(path):
                self._send(message)
        with contextlib.suppress(OSError):
            content = host.report_bytes()
            if content != self._told:
                self._send(Told(content))
                self._told = content

    def _tell_stores(self, *, is_whole: bool) -> None:
        """Tells of files that are to be kept.

        Args:
            is_whole: all of them, and not only some pieces.
        """
        if is_whole:  # what has begun, and what has come since
            for message in itertools.chain(self._sending or (), self._changes()):
                self._send(message)
            return
        if self._sending is None:
            self._sending = self._changes()
        num_sent = 0
        for message in itertools.islice(self._sending, _PIECES_AT_ONCE):
            self._send(message)
            num_sent += 1
        if num_sent < _PIECES_AT_ONCE:
            self._sending = None

    def _changes(self) -> Iterator[Message]:
        return itertools.chain.from_iterable(tree.changes() for tree in self._trees)

    def _bring(self, names: list[str]) -> None:
        for name in names:
            problem = ""
            archive = self._folder / "bring.tar"
            try:
                has_any = (
                    self._host is not None
                    and pack_directories(
                        archive,
                        [below(self._host.ml, name)],
                        [self._host.ml],
                        is_compressed=False,
                    )[0]
                )
                if has_any:
                    with archive.open("rb") as file:
                        for body, is_last in pieces_of(file):
                            self._send(Brought(name, is_last, "", body))
                    continue
            except (OSError, ValueError, SmdistributedError) as error:
                problem = str(error)
            finally:
                archive.unlink(missing_ok=True)
            self._send(Brought(name, True, problem))

    def _send(self, message: Message) -> None:
        self._write(encoded(message))

    def _write(self, content: bytes) -> None:
        with self._outbox:
            self._write_all(memoryview(content))

    def _write_all(self, rest: memoryview) -> None:
        wait = select.poll()
        wait.register(self._outgoing, select.POLLOUT)
        while rest:
            try:
                rest = rest[os.write(self._outgoing, rest) :]
            except BlockingIOError:
                wait.poll(1000)
            except OSError as error:
                raise _Lost(str(error)) from None
            if time.monotonic() - self._heard_at > MOST_SILENT_S:
                raise _Lost(f"nothing was heard for {MOST_SILENT_S:g} s")

    # --- the end ---------------------------------------------------------------------------------

    def _end_agent(self) -> None:
        """Nothing of the agent, and of what its ranks have started, is left."""
        if self._agent is not None and self._agent.poll() is None:
            assert self._host is not None
            with contextlib.suppress(OSError):
                self._host.ask_to_end(End("the job's process is not heard any more", _LOST_GRACE_S))
            try:
                self._agent.wait(_LOST_GRACE_S + _END_S)
            except subprocess.TimeoutExpired:
                self._agent.kill()  # its guardian ends the ranks
                self._agent.wait()
        end_strays()


# --- the folder -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for the courier, below the home of this user; it goes at the end.

    It goes too if the courier is killed: a process of its own waits for that.
    """
    above = home_directory().root / "hosts"
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = above / secrets.token_hex(8)
    folder.mkdir(mode=0o700)
    _sweep_after(folder)
    try:
        yield folder
    finally:
        _remove(folder)


def _sweep_after(folder: Path) -> None:
    """Starts what removes a folder when this process has ended. No thread may run yet."""
    woken, wake = os.pipe()  # its other end is held by this process alone, as long as it lives
    if os.fork():
        os.close(woken)
        return
    try:
        os.setsid()
        os.close(wake)
        for descriptor in range(3):  # else the connection would stay open
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        while os.read(woken, 1):
            pass
        until = time.monotonic() + _SWEEP_S
        while time.monotonic() < until and any(
            HostDirectory(each).lock.is_held_elsewhere() for each in (folder / "hosts").glob("*")
        ):
            time.sleep(_LOOK_S)  # an agent sees that the courier is gone, and ends its ranks
        _remove(folder)
    finally:
        os._exit(0)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        make_writable(folder)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Runs a courier on standard input and output; an argument is the address of this machine."""
    address = sys.argv[1] if len(sys.argv) > 1 else own_address()
    outgoing = os.dup(1)
    os.dup2(2, 1)  # what is printed by mistake is no message
    os.set_inheritable(outgoing, False)
    for number in (signal.SIGHUP, signal.SIGINT):  # the connection says what is to be done
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    with _own_folder() as folder:
        Courier(0, outgoing, folder, address).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
