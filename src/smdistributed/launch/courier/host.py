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
import select
import signal
import socket
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
from smdistributed.launch.courier.folder import Folder, folder_of_its_own
from smdistributed.launch.courier.keeping import STORES
from smdistributed.launch.courier.listening import MOST_SILENT_S, STILL_S, Listener
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
    Make,
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
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.orphans import adopt_orphans

__all__ = ["Courier", "main"]

_LOOK_S = 0.1
_LOST_GRACE_S = 5.0
_END_S = 10.0
_PIECES_AT_ONCE = 4


class _Lost(Exception):
    """The other end is gone, or silent."""


class Courier:
    """Of one host, for one attempt of a job.

    Args:
        incoming, outgoing: descriptors of the connection.
        folder: its own, which is there.
        address: at which other machines reach this one.
    """

    def __init__(self, incoming: int, outgoing: int, folder: Folder, address: str) -> None:
        self._address = address
        self._listener = Listener(lambda: os.read(incoming, MOST_BODY), Decoder())
        self._outgoing = outgoing
        self._own = folder
        self._folder = folder.path
        self._job = JobDirectory(folder.path)
        self._inbox: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._outbox = threading.Lock()
        self._said_at = 0.0
        self._told_beat = 0
        self._ports: list[socket.socket] = []
        self._cannot_place = False
        self._host: HostDirectory | None = None
        self._agent: subprocess.Popen[bytes] | None = None
        self._has_told_end = False
        self._told = b""
        self._growth: Growth | None = None
        self._trees: list[Tree] = []
        self._sending: Iterator[Message] | None = None
        self._has_more = False
        self._is_closed = False

    def run(self) -> None:
        """Does all of it. Returns when the other end has closed, or is lost."""
        os.set_blocking(self._outgoing, False)
        self._write(MARK + encoded(self._hello()))
        for target in (self._listen, self._say_still_here):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()
        try:
            while not self._is_closed:
                self._hear(0.0 if self._has_more else _LOOK_S)
                self._look()
        except (_Lost, ProtocolError) as error:
            print(f"courier: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            self._end_agent()

    def _hello(self) -> Hello:
        step, why = available_step(self._folder)
        while len(self._ports) < 2:
            self._ports.append(_held(free_port()))
        return Hello(
            version=__version__,
            name=os.uname().nodename,
            address=self._address,
            interface=interface_of(self._address),
            folder=str(self._folder),
            num_gpus=visible_accelerators(os.environ),
            ports=[each.getsockname()[1] for each in self._ports],
            opt_ml=f"{step.value}; {why}" if why else step.value,
            time_s=time.time(),
        )

    # --- what comes in ---------------------------------------------------------------------------

    def _listen(self) -> None:
        """On a thread of its own: files are written here, all else goes to the other thread."""
        arriving = Arriving()
        try:
            for message in self._listener.messages():
                if isinstance(message, Place | Make):
                    self._place(arriving, message)
                elif not isinstance(message, StillHere):
                    self._inbox.put(message)
            self._inbox.put(_Lost("the connection is closed"))
        except Exception as error:
            self._inbox.put(_Lost(f"{type(error).__name__}: {error}"))
        finally:
            arriving.drop()

    def _place(self, arriving: Arriving, message: Place | Make) -> None:
        """Writes a piece; once that has failed none any more, and it is told once."""
        if self._cannot_place:
            return
        path = below(self._folder, message.path)
        try:
            if isinstance(message, Make):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.chmod(message.mode & 0o777 | 0o700)
                return
            arriving.add(
                path,
                message.offset,
                message.body,
                is_last=message.is_last,
                modified_ns=message.modified_ns,
                mode=message.mode,
            )
        except OSError as error:
            self._cannot_place = True
            if not error.filename:
                error.filename = str(path)
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
        if self._has_told_end or self._host is not None:
            return
        host = HostDirectory(self._job.host(str(below(Path(), message.host))))
        try:
            plan = HostDirectory(self._folder).read_plan()
        except (OSError, ValueError, TypeError) as error:
            raise ProtocolError(f"there is no plan: {error}") from None
        self._growth = Growth(self._folder, known=host.path.glob("*"))
        self._trees = [
            Tree(each, self._folder / "store" / each, is_whole=self._is_whole) for each in STORES
        ]
        step, _ = available_step(self._folder)
        while self._ports:  # nobody could take them so far
            self._ports.pop().close()
        try:
            (self._folder / "hosts").mkdir(mode=0o700, exist_ok=True)
            self._agent = start_agent(host, plan, step)
        except (OSError, SmdistributedError) as error:
            self._refuse(f"InternalServerError: the agent of {message.host} cannot start: {error}")
            return
        self._host = host

    def _is_whole(self) -> bool:
        """Whether nobody has begun to remove the folder."""
        return (self._folder / "token").exists()

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
        self._require_other_end()
        if self._host is None or self._agent is None or self._has_told_end:
            self._has_more = False
            return
        if self._agent.poll() is None:
            self._has_more = self._tell_some(self._host)
            return
        end_strays([self._own.sweeper])
        for message in itertools.chain(
            self._sending or (),
            itertools.chain.from_iterable(tree.changes() for tree in self._trees),
            self._grown(self._host, None),
        ):
            self._send(message)
        self._tell_report(self._host)
        self._send(AgentEnded(self._agent.returncode))
        self._has_told_end = True

    def _require_other_end(self) -> None:
        if self._listener.silent_s() > MOST_SILENT_S:
            raise _Lost(f"nothing was heard for {MOST_SILENT_S:g} s")

    def _tell_some(self, host: HostDirectory) -> bool:
        """Tells a part of what is new: what comes in is to be heard. Returns: there is more."""
        num_sent = 0
        for message in self._grown(host, _PIECES_AT_ONCE):
            self._send(message)
            num_sent += 1
        has_more = num_sent >= _PIECES_AT_ONCE
        self._tell_report(host)
        if self._sending is None:
            self._sending = itertools.chain.from_iterable(tree.some() for tree in self._trees)
        num_sent = 0
        for message in itertools.islice(self._sending, _PIECES_AT_ONCE):
            self._send(message)
            num_sent += 1
        if num_sent < _PIECES_AT_ONCE:
            self._sending = None
        return has_more or self._sending is not None

    def _grown(self, host: HostDirectory, most: int | None) -> Iterator[Message]:
        """Of each file at most so many pieces; None: all."""
        assert self._growth is not None
        files = [host.path / "agent.log", host.log, host.metrics, host.system_metrics]
        with contextlib.suppress(OSError):
            files += sorted((self._folder / "tensorboard" / host.name).iterdir())
        for path in files:
            yield from itertools.islice(self._growth.news(path), most)

    def _tell_report(self, host: HostDirectory) -> None:
        with contextlib.suppress(OSError):
            content = host.report_bytes()
            if content != self._told:
                self._send(Told(content))
                self._told = content

    def _say_still_here(self) -> None:
        """On a thread of its own: also while something large is packed."""
        with contextlib.suppress(_Lost):
            while not self._is_closed:
                self._own.show_life()
                self._write(b"")
                time.sleep(STILL_S / 4)

    def _still_here(self) -> bytes:
        """What is to be said now and then, if it is time. The caller holds the lock."""
        if time.monotonic() - self._said_at < STILL_S:
            return b""
        self._said_at = time.monotonic()
        beat = 0
        if self._host is not None:
            with contextlib.suppress(OSError):
                beat = self._host.heartbeat.stat().st_mtime_ns
        is_new, self._told_beat = beat not in (0, self._told_beat), beat
        return encoded(StillHere(self._said_at, is_new, beat != 0))

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
                        for _, body, is_last in pieces_of(file):
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
            self._write_all(memoryview(content + self._still_here()))

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
            self._require_other_end()

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
        end_strays([self._own.sweeper])


def _held(port: int) -> socket.socket:
    """Keeps a port from others, who would get it while the data come in."""
    holder = socket.socket()
    holder.bind(("", port))
    return holder


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
    with folder_of_its_own() as folder:
        Courier(0, outgoing, folder, address).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
