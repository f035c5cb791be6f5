# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A host elsewhere, as the job's process sees it: what its courier tells, kept in files here.

So all that looks at a host there, such as the logs, sees no difference to one of this machine.

    listen     a thread: what the courier tells is written here
    talk       a thread: what the host needs is read here, and sent
    the rest   is asked by the thread of the job's process
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Plan, Report
from smdistributed.launch.contract.archives import unpack
from smdistributed.launch.courier.growing import Growing
from smdistributed.launch.courier.keeping import STORES, Keeping
from smdistributed.launch.courier.links import Link
from smdistributed.launch.courier.listening import MOST_SILENT_S, STILL_S, Listener
from smdistributed.launch.courier.messages import (
    AgentEnded,
    Bring,
    Brought,
    Close,
    Decoder,
    Dropped,
    EndRanks,
    Grown,
    Hello,
    Kept,
    Message,
    ProtocolError,
    StillHere,
    Told,
    encoded,
)
from smdistributed.launch.courier.sending import is_below_any, needed

__all__ = ["Mirror", "MirrorError"]

_ADDRESS = re.compile(r"[0-9A-Za-z.:%_-]{1,100}")
_CLOSE_S = 10.0
_SUSPICIOUS_S = 3.0
# Of the clocks of two machines: lines of their logs can still be told apart by their times.
_MOST_OFF_S = 5.0


class MirrorError(SmdistributedError):
    """A courier cannot be reached, or is gone; says of which machine."""


class Mirror:
    """Of one host, for one attempt.

    Args:
        machine: as the user calls it.
        link: to its courier.
    """

    def __init__(self, machine: str, link: Link) -> None:
        self.machine = machine
        self._link = link
        self._decoder = Decoder(has_mark=True)
        self._listener = Listener(link.read, self._decoder)
        self._outbox: queue.SimpleQueue[Iterator[Message]] = queue.SimpleQueue()
        self._hellos: queue.SimpleQueue[Hello | None] = queue.SimpleQueue()
        self._brought: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # problems
        self._archive: BinaryIO | None = None  # what is being brought
        self._drops_archive = False  # it cannot be written
        self._keeping: Keeping | None = None
        self._growing: Growing | None = None
        self._has_checkpoints = False  # elsewhere than at /opt/ml
        self._clock_s: float | None = None  # ours less theirs
        self._problem = ""
        self._has_ended = False
        self._status: int | None = None
        self._directory: HostDirectory | None = None
        self._hello: Hello | None = None
        self._is_unwanted = False
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"{target.__name__} {machine}", daemon=True)
            for target in (self._listen, self._talk)
        ]
        for thread in self._threads:
            thread.start()

    def pids(self) -> list[int]:
        """Of processes that this one has started for the link, and reaps itself."""
        return self._link.pids()

    @property
    def directory(self) -> HostDirectory:
        """Of the host, in the job's directory."""
        assert self._directory is not None
        return self._directory

    # --- before ----------------------------------------------------------------------------------

    def hello(self, timeout_s: float) -> Hello:
        """What the courier says of its machine.

        Raises:
            MirrorError: it says nothing in time, or is of another version.
        """
        try:
            said = self._hellos.get(timeout=timeout_s)
        except queue.Empty:
            said = None
        if said is None:
            why = self._problem or f"it said nothing for {timeout_s:.0f} s"
            raise MirrorError(f"{self.machine} cannot be reached: {why}")
        return said

    def begin(
        self, directory: HostDirectory, plan: Plan, token: Path, is_shared: Sequence[Path] = ()
    ) -> None:
        """Has the agent of a host start there, once all that it needs has come.

        Args:
            directory: of the host, in the job's directory.
            plan: with paths of this machine.
            token: the file of the job's token.
            is_shared: folders that the other machine sees too: what is in them stays there.

        Raises:
            OSError: the directory cannot be written.
        """
        assert self._hello is not None
        if plan.attempt > 1 and directory.path.is_dir():
            directory.renew()
        directory.write_plan(plan)
        directory.ml.mkdir(mode=0o700, exist_ok=True)
        stores = {
            name: Path(kept)
            for name in STORES
            if (kept := getattr(plan, name)) and not kept.startswith("s3://")  # its own to reach
        }
        self._has_checkpoints = "checkpoints" in stores
        stores = {name: each for name, each in stores.items() if not is_below_any(each, is_shared)}
        self._keeping = Keeping(stores, f"{directory.path.parent.parent.name}-{directory.name}")
        self._growing = Growing(directory, goes_on=plan.attempt > 1)
        self._directory = directory
        off_s = self._hello.time_s - time.time()
        if abs(off_s) > _MOST_OFF_S:
            how = "ahead of" if off_s > 0 else "behind"
            self.directory.say(
                f"the clock of {self.machine} is {abs(off_s):.0f} s {how} that of this machine;"
                " the times in its log and of its metrics are its own"
            )
        there = Path(self._hello.folder)
        self._outbox.put(self._wanted(needed(plan, token, there, directory, stores, is_shared)))

    def _wanted(self, messages: Iterator[Message]) -> Iterator[Message]:
        """They stop once the ranks are to end: a stop does not wait for data."""
        try:
            for message in messages:
                if self._is_unwanted:
                    return
                yield message
        except (ConfigurationError, OSError) as error:
            self._fail(f"ClientError: {error}")

    # --- as `HostAgent` --------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Whether the agent has, and all that it has written is here; or the courier is lost."""
        silent_s = self._listener.silent_s()
        if silent_s > MOST_SILENT_S:
            self._lose(f"it gave no sign of life for {MOST_SILENT_S:g} s")
        elif silent_s > _SUSPICIOUS_S and self._directory is not None:
            with contextlib.suppress(OSError):  # nothing can be said of the agent then
                os.utime(self._directory.heartbeat)
        return self._has_ended

    def silent_s(self) -> float:
        """For how long its machine has said nothing."""
        return self._listener.silent_s()

    def how_it_ended(self) -> str:
        """In words."""
        if self._status is not None:
            return (
                f"({self.machine}) ended with status {self._status} (-n: signal n) before its"
                f" ranks; see {self.directory.path / 'agent.log'}."
            )
        return f"({self.machine}) is lost: {self._problem}"

    def tell_to_end(self, end: End) -> None:
        """Tells it."""
        self._is_unwanted = True
        self._outbox.put(iter([EndRanks(end.why, end.grace_s)]))

    def terminate(self) -> None:
        """Tells it to end its ranks."""
        self.tell_to_end(End("the job ends", 5.0))

    def kill(self) -> None:
        """Cuts the connection: the courier ends all that is there."""
        self._lose("the connection was cut")

    def wait(self, timeout_s: float) -> bool:
        """Waits until the agent has ended. Returns: whether it has."""
        until = time.monotonic() + timeout_s
        while not self.has_ended():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    # --- after -----------------------------------------------------------------------------------

    def bring(self, names: Sequence[str]) -> None:
        """Brings folders of `/opt/ml` to the host's folder here.

        Args:
            names: of the folders. Checkpoints that are kept elsewhere are left out.

        Raises:
            MirrorError: they are lost.
            ConfigurationError: they cannot be packed there or written here, or checkpoints were not
                kept.
        """
        if self._status is None:
            raise MirrorError(f"what {self.machine} had at /opt/ml is lost: {self._problem}")
        for name in names:
            if name != "checkpoints" or not self._has_checkpoints:
                self._bring(name)
        if self._keeping is not None and self._keeping.problems:
            raise ConfigurationError(next(iter(self._keeping.problems.values())))

    def _bring(self, name: str) -> None:
        target = self.directory.ml / name
        archive = self.directory.path / "brought.tar"
        try:
            with archive.open("wb") as file:
                self._archive = file
                self._outbox.put(iter([Bring([name])]))
                if problem := self._problem_of_archive():
                    raise ConfigurationError(f"{name} of {self.machine}: {problem}")
                self._archive = None
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            if archive.stat().st_size:
                unpack(archive, target, is_compressed=False, keeps_modes=True)
        except OSError as error:
            raise ConfigurationError(
                f"{name} of {self.machine} cannot be written to {target}: {error}; expected room on"
                " that disk."
            ) from None
        finally:
            self._archive = None
            archive.unlink(missing_ok=True)

    def _problem_of_archive(self) -> str:
        """Waits until it is there. Returns: why it is not; empty: it is."""
        while True:
            with contextlib.suppress(queue.Empty):
                problem = self._brought.get(timeout=STILL_S)
                if problem is not None:
                    return problem
            self.has_ended()
            if self._problem:
                raise MirrorError(f"{self.machine} is lost: {self._problem}")

    def close(self) -> None:
        """Ends the courier, and takes the connection away."""
        self._outbox.put(iter([Close()]))
        self._link.end(_CLOSE_S)
        self._is_over.set()
        self._outbox.put(iter(()))
        for thread in self._threads:
            thread.join(_CLOSE_S)
        self._link.free()
        if self._keeping is not None:
            self._keeping.close()

    # --- the connection --------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if not self._problem:
            self._problem = why
        self._has_ended = True
        self._hellos.put(None)
        self._brought.put(None)
        self._link.cut()

    def _fail(self, failure: str) -> None:
        """What is wrong is here, or in what was asked for: another attempt would end so too."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._directory.give_room()
                self._directory.write_report(Report(Phase.ENDED, failure))
        self._lose(failure)

    def _listen(self) -> None:
        try:
            for message in self._listener.messages():
                self._take(message)
            self._lose(self._link.why_closed())
        except ProtocolError as error:
            said = self._decoder.before[-200:].decode(errors="replace").strip()
            self._lose(f"{error}" + (f" It said: {said}" if said else ""))
        except OSError as error:
            self._fail(
                f"ClientError: what {self.machine} tells cannot be written here: {error}; expected"
                " room on the disk of SMD_HOME."
            )
        except Exception as error:
            self._lose(f"what it told cannot be kept: {type(error).__name__}: {error}")

    def _talk(self) -> None:
        """Sends what is to be sent, and once a second that this end is there."""
        sending: Iterator[Message] = iter(())
        said_at = 0.0
        try:
            while not self._is_over.is_set():
                if time.monotonic() - said_at >= STILL_S:
                    said_at = time.monotonic()
                    self._link.write(encoded(StillHere(said_at, False, False)))
                message = next(sending, None)
                if message is not None:
                    self._link.write(encoded(message))
                    continue
                with contextlib.suppress(queue.Empty):
                    sending = self._outbox.get(timeout=STILL_S)
        except OSError:
            if not self._is_over.is_set():
                self._lose(self._link.why_closed())
        except Exception as error:
            self._lose(f"what it needs cannot be sent: {type(error).__name__}: {error}")

    # --- what the courier tells ------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        if isinstance(message, StillHere):
            self._take_beat(message)
        elif isinstance(message, Hello):
            self._take_hello(message)
        elif self._directory is None:
            raise ProtocolError(f"{type(message).__name__} comes before an agent was asked for.")
        elif isinstance(message, Grown):
            assert self._growing is not None
            self._growing.take(message)
        elif isinstance(message, Told):
            self._take_report(message)
        elif isinstance(message, Kept | Dropped):
            assert self._keeping is not None
            if problem := self._keeping.take(message):
                self.directory.say(problem)
        elif isinstance(message, Brought):
            self._take_archive(message)
        elif isinstance(message, AgentEnded):
            with contextlib.suppress(OSError):
                self.directory.heartbeat.unlink(missing_ok=True)
            self._is_unwanted = True
            self._status = message.status
            self._has_ended = True
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this end.")

    def _take_hello(self, message: Hello) -> None:
        if self._hello is not None:
            raise ProtocolError("a courier has begun twice.")
        if len(message.ports) != 2 or not all(0 < each < 1 << 16 for each in message.ports):
            raise ProtocolError(f"it has the ports {message.ports!r:.100}.")
        if not _ADDRESS.fullmatch(message.address):  # it comes to stand in files of other hosts
            raise ProtocolError(f"it has the address {message.address!r:.100}.")
        self._hello = message
        self._hellos.put(message)

    def _take_beat(self, message: StillHere) -> None:
        ours = time.monotonic() - message.clock_s
        self._clock_s = ours if self._clock_s is None else min(self._clock_s, ours)
        if self._directory is None or self._has_ended:
            return
        with contextlib.suppress(OSError):
            if message.beat:
                self._directory.heartbeat.touch()
            elif not message.has_ranks:
                self._directory.heartbeat.unlink(missing_ok=True)

    def _take_report(self, message: Told) -> None:
        try:
            report = Report.of(json.loads(message.body))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ProtocolError(f"a report cannot be read: {error}") from None
        # Their clock began at another time.
        shift_s = self._clock_s or 0.0
        ranks = tuple(
            dataclasses.replace(each, ended_at=each.ended_at + shift_s) for each in report.ranks
        )
        self.directory.write_report(dataclasses.replace(report, ranks=ranks))

    def _take_archive(self, message: Brought) -> None:
        if self._drops_archive:
            return
        if self._archive is None:
            raise ProtocolError("what was not asked for is brought.")
        problem = message.problem
        try:
            self._archive.write(message.body)
            self._archive.flush()
        except OSError as error:
            self._drops_archive = True
            problem = f"{self._archive.name} cannot be written: {error}; expected room on that disk"
        if message.is_last or problem:
            self._archive = None
            self._brought.put(problem)
