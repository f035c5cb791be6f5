# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Channels in mode Pipe: a script reads its data from a FIFO, again in each epoch.

    <channel>_0, <channel>_1, ...    one is there from the start; the next one appears when a reader
                                     has opened the one before

A thread for each channel waits for a reader, writes all objects one after the other, closes and
removes the FIFO, and goes on with the next. So a reader that comes too late for an epoch finds no
file, rather than one that never says anything. A reader may close early, and need not come at all.
Objects of an S3 store are read when their turn comes: none is kept here.

Source: launch specification, section 5.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import io
import os
import select
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from smdistributed.launch.data.objects import DataObject
from smdistributed.launch.data.sources import InputMode, Source
from smdistributed.launch.data.stores.remote import Abandoned, RemoteStore
from smdistributed.launch.data.stores.s3 import S3Settings

__all__ = ["ChannelPipe", "ChannelPipes"]

_AT_ONCE = 1 << 18
_ROOM = 1 << 20
_POLL_S = 0.05
_END_S = 5.0


class _Over(Exception):
    """The job has ended: nobody reads any more."""


class ChannelPipe:
    """Of one channel. The first FIFO is made at once.

    Args:
        name: of the channel.
        source: of this host.
        path: of the channel; the number of an epoch is added to its name.
        root: where this host sees the folder of the data; None: where the source says.
        settings: of the S3 store, if the data are in one.

    Attributes:
        problem: why the data cannot be read to their end; empty if they can.
        is_passing: they might be a moment later.

    Raises:
        OSError: a FIFO cannot be made.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        path: Path,
        root: Path | None = None,
        settings: S3Settings | None = None,
    ) -> None:
        self._name = name
        self._source = source
        self._path = path
        self._root = root or Path(source.root)
        self._epoch = 0
        self._woken, self._wake = os.pipe()
        self._is_over = False
        self._store: RemoteStore | None = None
        if source.bucket:
            assert settings is not None
            self._store = RemoteStore(source.bucket, settings, is_unwanted=lambda: self._is_over)
        self._thread = threading.Thread(target=self._run, name=f"pipe {name}", daemon=True)
        self.problem = ""
        self.is_passing = False
        self._make(0)

    def begin(self) -> None:
        """Waits for readers on a thread of its own."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread, wherever it is, and leaves no FIFO."""
        self._is_over = True
        os.write(self._wake, b"x")
        if self._thread.ident is not None:
            for _ in range(round(_END_S / _POLL_S)):
                # A thread that waits for a reader in open() goes on when there is one.
                with contextlib.suppress(OSError):
                    os.close(os.open(self._fifo(self._epoch), os.O_RDONLY | os.O_NONBLOCK))
                self._thread.join(_POLL_S)
                if not self._thread.is_alive():
                    break
        for epoch in (self._epoch, self._epoch + 1):
            self._fifo(epoch).unlink(missing_ok=True)
        if self._store is not None:
            self._store.close()
        if not self._thread.is_alive():
            os.close(self._woken)
            os.close(self._wake)

    @property
    def pid(self) -> int | None:
        """Of the process that reads the S3 store, if there is one."""
        return self._store.pid if self._store is not None else None

    def _fifo(self, epoch: int) -> Path:
        return self._path.with_name(f"{self._path.name}_{epoch}")

    def _make(self, epoch: int) -> None:
        path = self._fifo(epoch)
        with contextlib.suppress(FileNotFoundError):  # of an agent that was killed
            if stat.S_ISFIFO(path.lstat().st_mode):
                path.unlink()
        os.mkfifo(path, 0o600)

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._feed_epoch()
                self._epoch += 1
        except (_Over, Abandoned):
            pass
        except OSError as error:
            self.problem = f"channel {self._name!r} has no FIFO any more: {error}"

    def _feed_epoch(self) -> None:
        fifo = self._fifo(self._epoch)
        target = os.open(fifo, os.O_WRONLY)  # returns when a reader has opened it
        try:
            if self._is_over:
                raise _Over
            with self._without_end(f"channel {self._name!r} has no FIFO for its next epoch"):
                self._make(self._epoch + 1)
            os.set_blocking(target, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, _ROOM)
            for each in self._source.of_epoch(self._epoch):
                path = f"{self._source.root}/{each.key}"
                with self._without_end(f"{path} of channel {self._name!r} cannot be read"):
                    if not self._feed(each, target):
                        break
        finally:
            fifo.unlink(missing_ok=True)  # before it is closed: nobody may wait there for us
            os.close(target)

    def _feed(self, each: DataObject, target: int) -> bool:
        """Writes an object. Returns: whether the reader is still there."""
        with self._opened(each) as file:
            while content := file.read(_AT_ONCE):
                if not self._write(memoryview(content), target):
                    return False
        return True

    @contextlib.contextmanager
    def _without_end(self, what: str) -> Iterator[None]:
        """Whatever goes wrong in its block, the reader gets no end, and is ended with the job.

        Else it would take what it has got for all.
        """
        try:
            yield
        except (_Over, Abandoned):
            raise
        except Exception as error:
            self.is_passing = getattr(error, "is_passing", False)
            self.problem = f"{what}: {str(error) or type(error).__name__}"
            wake = select.poll()
            wake.register(self._woken, select.POLLIN)
            wake.poll()
            raise _Over from None

    @contextlib.contextmanager
    def _opened(self, each: DataObject) -> Iterator[BinaryIO]:
        with contextlib.ExitStack() as stack:
            file: Any
            if self._store is not None:
                pieces = stack.enter_context(contextlib.closing(self._store.read(each)))
                file = io.BufferedReader(_Pieces(pieces), _AT_ONCE)
            else:
                file = stack.enter_context((self._root / each.key).open("rb"))
            if self._source.is_gzip:
                file = stack.enter_context(gzip.open(file, "rb"))
            yield file

    def _write(self, rest: memoryview, target: int) -> bool:
        wake = select.poll()
        wake.register(self._woken, select.POLLIN)
        wake.register(target, select.POLLOUT)
        while rest:
            if any(descriptor == self._woken for descriptor, _ in wake.poll()):
                raise _Over
            try:
                rest = rest[os.write(target, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                return False
        return True


class _Pieces(io.RawIOBase):
    """Pieces, one after the other, as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class ChannelPipes:
    """Of all channels of a host that are in mode Pipe. In its block FIFOs are there.

    Args:
        sources: by name of the channel, in whatever mode.
        folder: of the channels.
        views: where `placement.make_views` has made the data visible; None: sources say where.
        settings: of the S3 store, if data are in one.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        folder: Path,
        views: Path | None = None,
        settings: S3Settings | None = None,
    ) -> None:
        self._sources = {
            name: source for name, source in sources.items() if source.mode == InputMode.PIPE
        }
        self._folder = folder
        self._views = views
        self._settings = settings
        self._pipes: list[ChannelPipe] = []
        self._has_begun = False

    def __enter__(self) -> ChannelPipes:
        """Makes the first FIFOs.

        Raises:
            OSError: one cannot be made.
        """
        try:
            for name, source in self._sources.items():
                root = self._views / name if self._views is not None else None
                path = self._folder / name
                self._pipes.append(ChannelPipe(name, source, path, root, self._settings))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the threads. No FIFO is left."""
        for each in self._pipes:
            each.end()

    def begin(self) -> None:
        """Feeds from now on; once is as good as twice."""
        if not self._has_begun:
            self._has_begun = True
            for each in self._pipes:
                each.begin()

    def pids(self) -> list[int]:
        """Numbers of the processes that read an S3 store."""
        return [each.pid for each in self._pipes if each.pid is not None]

    @property
    def problem(self) -> str:
        """Why a channel cannot be read to its end; empty if all can."""
        return next((each.problem for each in self._pipes if each.problem), "")

    @property
    def is_passing(self) -> bool:
        """Whether what is the problem might pass."""
        return next((each.is_passing for each in self._pipes if each.problem), False)
