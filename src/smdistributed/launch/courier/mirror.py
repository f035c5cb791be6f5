# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A host elsewhere, as the job's process sees it: what its courier tells, kept in files here.

So all that looks at a host there, such as the logs, sees no difference to one of this machine.
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

from smdistributed._common.errors import SmdistributedError
from smdistributed._common.version import __version__
from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Plan, RankEnd, Report
from smdistributed.launch.contract.archives import unpack
from smdistributed.launch.courier.files import Arriving, below, pieces_of
from smdistributed.launch.courier.host import MOST_SILENT_S, STORES
from smdistributed.launch.courier.links import Link
from smdistributed.launch.courier.messages import (
    MOST_BODY,
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
    Place,
    ProtocolError,
    Start,
    StillHere,
    Told,
    encoded,
)
from smdistributed.launch.data.sources import Source, keys_below

__all__ = ["Mirror", "MirrorError"]

# Of what a courier tells of growth: no other file is written to.
_GROWING = re.compile(
    r"hosts/(?P<host>[^/]+)/(agent\.log|log|metrics\.jsonl|system_metrics\.jsonl)"
    r"|tensorboard/(?P<board>[^/]+)/[^/]+"
)
_STILL_S = 1.0
_CLOSE_S = 10.0


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
        self._arriving = Arriving()
        self._outbox: queue.SimpleQueue[Iterator[Message]] = queue.SimpleQueue()
        self._hellos: queue.SimpleQueue[Hello | None] = queue.SimpleQueue()
        self._brought: queue.SimpleQueue[Brought | None] = queue.SimpleQueue()
        self._stores: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}
        self._clock_s: float | None = None  # ours less theirs
        self._heard_at = time.monotonic()
        self._problem = ""
        self._has_ended = False
        self._status: int | None = None
        self._not_kept: dict[Path, str] = {}  # why
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
            why = self._problem or f"it said nothing for {timeout_s:g} s"
            raise MirrorError(f"{self.machine} cannot be reached: {why}")
        if said.version != __version__:
            raise MirrorError(
                f"{self.machine} has version {said.version} of smdistributed-open, and this machine"
                f" {__version__}; expected the same on both. Install it there."
            )
        self._hello = said
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
        self._directory = directory
        if plan.attempt > 1 and directory.path.is_dir():
            directory.renew()
        directory.write_plan(plan)
        directory.ml.mkdir(mode=0o700, exist_ok=True)
        for name in STORES:
            kept = getattr(plan, name)
            if kept and not kept.startswith("s3://"):  # which the agent reaches itself
                self._stores[name] = Path(kept)
        self._outbox.put(self._wanted(self._all_of(plan, token, is_shared)))

    def _wanted(self, messages: Iterator[Message]) -> Iterator[Message]:
        """They stop once the ranks are to end: a stop does not wait for data."""
        for message in messages:
            if self._is_unwanted:
                return
            yield message

    def _all_of(self, plan: Plan, token: Path, is_shared: Sequence[Path]) -> Iterator[Message]:
        assert self._hello is not None
        there = Path(self._hello.folder)
        changed: dict[str, object] = {}
        yield from _placed("token", token)
        if plan.archive:
            yield from _placed("sources.tar.gz", Path(plan.archive))
            changed["archive"] = str(there / "sources.tar.gz")
        sources = dict(plan.sources)
        for name, source in plan.data().items():
            root = Path(source.root)
            if source.bucket or any(root.is_relative_to(each) for each in is_shared):
                continue
            yield from self._data(f"data/{name}", source)
            sources[name] = {**sources[name], "root": str(there / "data" / name)}
        changed["sources"] = sources
        for name, store in self._stores.items():
            if name == "checkpoints" and store.is_dir():
                for key in keys_below(store):
                    yield from _placed(f"store/{name}/{key}", store / key)
            changed[name] = str(there / "store" / name)
        plan = dataclasses.replace(plan, **changed)  # type: ignore[arg-type]
        yield from _pieces("plan.json", json.dumps(dataclasses.asdict(plan)).encode())
        yield Start(plan.host)

    def _data(self, where: str, source: Source) -> Iterator[Message]:
        root = Path(source.root)
        keys = (
            list(keys_below(root))
            if source.objects is None
            else [key for _, key, *_ in (source.objects or ())]
        )
        # A channel without files is a folder all the same.
        yield from _pieces(f"{where}/.smd-folder", b"")
        for key in keys:
            yield from _placed(f"{where}/{key}", root / key)

    # --- as `HostAgent` --------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Whether the agent has, and all that it has written is here; or the courier is lost."""
        self._look()
        return self._has_ended

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
            names: of the folders.

        Raises:
            SmdistributedError: they cannot be brought, or checkpoints could not be kept.
        """
        if self._status is None:
            raise MirrorError(f"what {self.machine} had at /opt/ml is lost: {self._problem}")
        self._outbox.put(iter([Bring(list(names))]))
        for name in names:
            self._bring(name)
        if self._not_kept:
            raise MirrorError(next(iter(self._not_kept.values())))

    def _bring(self, name: str) -> None:
        target = self.directory.ml / name
        archive = self.directory.path / "brought.tar"
        try:
            with archive.open("wb") as file:
                while True:
                    piece = self._next_brought()
                    if piece.problem:
                        raise MirrorError(f"{name} of {self.machine}: {piece.problem}")
                    file.write(piece.body)
                    if piece.is_last:
                        break
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            if archive.stat().st_size:
                unpack(archive, target, is_compressed=False)
        except OSError as error:
            raise MirrorError(
                f"{name} of {self.machine} cannot be written to {target}: {error}"
            ) from None
        finally:
            archive.unlink(missing_ok=True)

    def _next_brought(self) -> Brought:
        while True:
            with contextlib.suppress(queue.Empty):
                piece = self._brought.get(timeout=_STILL_S)
                if piece is not None:
                    return piece
            self._look()
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
        self._arriving.drop()

    # --- the connection --------------------------------------------------------------------------

    def _look(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if silent_s > MOST_SILENT_S and not self._problem:
            self._lose(f"it gave no sign of life for {MOST_SILENT_S:g} s")

    def _lose(self, why: str) -> None:
        if not self._problem:
            self._problem = why
        self._has_ended = True
        self._hellos.put(None)
        self._brought.put(None)
        self._link.cut()

    def _listen(self) -> None:
        try:
            while content := self._link.read():
                self._heard_at = time.monotonic()
                for message in self._decoder.feed(content):
                    self._take(message)
            self._lose(self._link.why_closed())
        except ProtocolError as error:
            said = self._decoder.before[-200:].decode(errors="replace").strip()
            self._lose(f"{error}" + (f" It said: {said}" if said else ""))
        except Exception as error:
            self._lose(f"what it told cannot be kept: {type(error).__name__}: {error}")

    def _talk(self) -> None:
        """Sends what is to be sent, and once a second that this end is there."""
        sending: Iterator[Message] = iter(())
        said_at = 0.0
        while not self._is_over.is_set():
            try:
                message = next(sending, None)
            except (OSError, SmdistributedError) as error:
                self._lose(f"what it needs cannot be read here: {error}")
                return
            try:
                if time.monotonic() - said_at >= _STILL_S:
                    said_at = time.monotonic()
                    self._link.write(encoded(StillHere(said_at, False, False)))
                if message is not None:
                    self._link.write(encoded(message))
                    continue
            except (OSError, ValueError):  # it is closed
                if not self._is_over.is_set():
                    self._lose(self._link.why_closed())
                return
            with contextlib.suppress(queue.Empty):
                sending = self._outbox.get(timeout=_STILL_S)

    # --- what the courier tells ------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        if isinstance(message, StillHere):
            self._take_beat(message)
        elif isinstance(message, Hello):
            self._hellos.put(message)
        elif isinstance(message, Grown):
            self._take_growth(message)
        elif isinstance(message, Told):
            self._take_report(message)
        elif isinstance(message, Kept | Dropped):
            self._keep(message)
        elif isinstance(message, Brought):
            self._brought.put(message)
        elif isinstance(message, AgentEnded):
            with contextlib.suppress(OSError):
                self.directory.heartbeat.unlink(missing_ok=True)
            self._status = message.status
            self._has_ended = True
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this end.")

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

    def _take_growth(self, message: Grown) -> None:
        found = _GROWING.fullmatch(message.path)
        host = self.directory.name
        if found is None or host not in found.groupdict().values():
            raise ProtocolError(f"{message.path!r:.100} is no file that grows.")
        if message.offset != self._sizes.get(message.path, 0):
            raise ProtocolError(f"{message.path} grows at {message.offset}.")
        path = below(self.directory.path.parent.parent, message.path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(message.body)
        self._sizes[message.path] = message.offset + len(message.body)

    def _take_report(self, message: Told) -> None:
        try:
            document = json.loads(message.body)
            ranks = tuple(RankEnd(**each) for each in document["ranks"])
            report = Report(Phase(document["phase"]), str(document["failure"]), ranks)
        except (ValueError, LookupError, TypeError) as error:
            raise ProtocolError(f"a report cannot be read: {error}") from None
        # Their clock began at another time.
        shift_s = self._clock_s or 0.0
        ranks = tuple(
            dataclasses.replace(each, ended_at=each.ended_at + shift_s) for each in report.ranks
        )
        self.directory.write_report(dataclasses.replace(report, ranks=ranks))

    def _keep(self, message: Kept | Dropped) -> None:
        """What cannot be kept is told at the end; training goes on, as on this machine."""
        root = self._stores.get(message.store)
        if root is None:
            raise ProtocolError(f"{message.store!r} is no store of this job.")
        path = below(root, message.path)
        try:
            if isinstance(message, Kept):
                is_whole = self._arriving.add(
                    path, message.body, is_last=message.is_last, modified_ns=message.modified_ns
                )
                if is_whole:
                    self._not_kept.pop(path, None)
            else:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    while path.parent != root:
                        path = path.parent
                        path.rmdir()
        except OSError as error:
            self._not_kept[path] = f"{message.path} could not be kept in {root}: {error}"


def _placed(where: str, path: Path) -> Iterator[Place]:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        for body, is_last in pieces_of(file):
            yield Place(where, found.st_mode & 0o777, found.st_mtime_ns, is_last, body)


def _pieces(where: str, content: bytes) -> Iterator[Place]:
    for begin in range(0, len(content) or 1, MOST_BODY):
        end = begin + MOST_BODY
        yield Place(where, 0o600, time.time_ns(), end >= len(content), content[begin:end])
