# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Many objects of a store into a folder: each is there whole and checked, or not at all.

    FOLDER/<name>              objects that are whole
    STATE/whole.jsonl          of each of them, the ETag that it had in the store, and how it looks
    STATE/<digits>.part        what there is of one; key, size and ETag decide about the digits

So what is there already is not read again, also after this process was killed: a part is gone on
with by `Range` and `If-Match`, and one of an object that was replaced has another name.

Source: launch specification, section 5.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import os
import tempfile
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.objects import DataObject, require_places
from smdistributed.launch.data.stores.s3 import PAUSES_S, S3Store, paused
from smdistributed.launch.data.stores.store import (
    Corrupt,
    Digest,
    Look,
    Store,
    StoreError,
    look_of,
)
from smdistributed.launch.jobs.files import append_line

__all__ = ["THREADS", "Download", "Progress", "Resumed", "fetch", "read_object"]

THREADS = 10
"""That read at the same time."""

# What is under way when a store falls silent is read again.
_AT_ONCE = 1 << 17
# A try that brings so much is no failure in a row: a connection may be cut again and again.
_WORTH = 1 << 16


class Progress(NamedTuple):
    """How far a download is.

    Attributes:
        num_done, num_objects: objects that are there, and all.
        done, size: the same in bytes.
    """

    num_done: int
    num_objects: int
    done: int
    size: int


class _Cancelled(Exception):
    """Another object cannot be read, so nobody wants this one."""


class Resumed:
    """An object that is read to its end, whatever happens to its connections.

    Args:
        store: has it.
        each: the object.
        start: the first byte that is wanted.
        wait: sleeps for some seconds; may raise to give up.

    Attributes:
        position: of the next byte.
        checksum_kind, checksum: of the whole object, once it is being read; empty if the store
            gives none that can be checked here.
    """

    def __init__(
        self,
        store: Store,
        each: DataObject,
        start: int,
        wait: Callable[[float], object],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._store = store
        self._each = each
        self._wait = wait
        self._pauses_s = pauses_s
        self._stream: BinaryIO | None = None
        self._failures = 0
        self._mark = start
        self._has_opened = False
        self.position = start
        self.checksum_kind = ""
        self.checksum = ""

    def read(self, most: int) -> bytes:
        """The next bytes, at most so many; none at the end.

        Raises:
            StoreError: it cannot be read to its end.
        """
        while self.position < self._each.size:
            try:
                if self._stream is None:
                    self._open()
                assert self._stream is not None
                content = self._stream.read(min(most, self._each.size - self.position))
                if not content:
                    raise StoreError(
                        f"{self._store.uri(self._each.key)} has ended after {self.position:,} of"
                        f" {self._each.size:,} bytes.",
                        is_passing=True,
                    )
                self.position += len(content)
                return bytes(content)
            except Exception as error:
                self.close()
                self._go_on_after(self._store.read_error(error, self._each.key))
        self.close()
        return b""

    def _open(self) -> None:
        each = self._each
        # Without an ETag nothing tells that what follows is of the same object.
        start = self.position if each.etag else 0
        opened = self._store.open(each.key, start, each.etag)
        self._stream = opened.stream
        if not self._has_opened and opened.checksum is not None:  # stores give others with ranges
            self.checksum_kind, self.checksum = opened.checksum
        self._has_opened = True
        left = self.position - opened.start
        while left:
            skipped = len(self._stream.read(min(left, _AT_ONCE)))
            if not skipped:
                break
            left -= skipped

    def _go_on_after(self, problem: StoreError) -> None:
        if not problem.is_passing:
            raise problem
        if self.position - self._mark >= _WORTH:
            self._failures, self._mark = 0, self.position
        if self._failures == len(self._pauses_s):
            raise StoreError(
                f"{problem} It was tried {self._failures + 1} times, and"
                f" {self.position:,} of {self._each.size:,} bytes are there.",
                is_passing=True,
            )
        self._wait(paused(self._pauses_s[self._failures]))
        self._failures += 1

    def close(self) -> None:
        """Closes the connection."""
        if self._stream is not None:
            with contextlib.suppress(Exception):
                self._stream.close()
            self._stream = None


def read_object(store: S3Store, key: str) -> bytes:
    """A whole object, which is small.

    Raises:
        StoreError: it is not there, or cannot be read.
    """
    found = store.require(key)
    source = Resumed(store, DataObject(key, *found), 0, time.sleep)
    try:
        return b"".join(iter(lambda: source.read(_AT_ONCE), b""))
    finally:
        source.close()


def fetch(store: S3Store, key: str, path: Path) -> None:
    """Copies one object to a file of this machine, which is whole or not there.

    Raises:
        StoreError: it is not there, or cannot be read.
        ConfigurationError: the disk is full.
        OSError: the file cannot be written.
    """
    found = store.require(key)
    with tempfile.TemporaryDirectory(prefix=".smd-", dir=path.parent) as state:
        name = "object"
        Download(store, Path(state), Path(state, "state"), 1).run([DataObject(name, *found)])
        os.replace(Path(state, name), path)


class Download:
    """Of some objects into a folder.

    Args:
        store: has them.
        folder: for the objects.
        state: a folder beside it, on the same disk.
        threads: that read at the same time.
        pauses_s: between tries.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        state: Path,
        threads: int = THREADS,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._store = store
        self._folder = folder
        self._state = state
        self._threads = threads
        self._pauses_s = pauses_s
        self._journal = state / "whole.jsonl"
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._progress = Progress(0, 0, 0, 0)

    @property
    def progress(self) -> Progress:
        """How far it is; from any thread."""
        with self._lock:
            return self._progress

    def cancel(self) -> None:
        """Ends `run` soon, from another thread."""
        self._cancelled.set()

    def run(self, objects: Sequence[DataObject]) -> None:
        """Has all objects in the folder.

        Args:
            objects: each with its size and ETag; names are paths below the folder.

        Raises:
            StoreError: one cannot be read, or is not what the store says that it is.
            ConfigurationError: they cannot be together in the folder, or the disk is full.
            OSError: they cannot be written.
        """
        require_places(self._store.uri(), objects)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_cases(objects)
        whole = self._read_journal()
        missing = [each for each in objects if not self._is_whole(each, whole.get(each.name))]
        size = sum(each.size for each in objects)
        left = sum(each.size for each in missing)
        self._progress = Progress(len(objects) - len(missing), len(objects), size - left, size)
        self._require_room(missing)
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            doing = [pool.submit(self._fetch, each) for each in missing]
            try:
                for each in concurrent.futures.as_completed(doing):
                    each.result()
            except BaseException as error:
                self._cancelled.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise self._first(doing, error) from None

    @staticmethod
    def _first(
        doing: Sequence[concurrent.futures.Future[None]], error: BaseException
    ) -> BaseException:
        """What has gone wrong; being cancelled is what follows from it."""
        found = [each.exception() for each in doing if each.done() and not each.cancelled()]
        return next((each for each in found if each and not isinstance(each, _Cancelled)), error)

    # --- before ----------------------------------------------------------------------------------

    def _read_journal(self) -> dict[str, tuple[str, Look]]:
        whole = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._journal.read_bytes().splitlines():
                with contextlib.suppress(ValueError, TypeError):  # its writer was killed
                    name, etag, *look = json.loads(line)
                    whole[name] = (etag, (look[0], look[1], look[2]))
        return whole

    def _is_whole(self, each: DataObject, known: tuple[str, Look] | None) -> bool:
        path = self._folder / each.name
        if known is None or not each.etag or path.is_symlink():
            return False
        return known == (each.etag, look_of(path)) and known[1][0] == each.size

    def _require_cases(self, objects: Sequence[DataObject]) -> None:
        """Refuses names that this file system takes for one."""
        probe = self._state / ".smd-CASE"
        probe.touch()
        is_one = (self._state / ".smd-case").exists()
        probe.unlink()
        if not is_one:
            return
        names: dict[str, str] = {}
        for each in objects:
            alike = unicodedata.normalize("NFD", each.name.casefold())
            other = names.setdefault(alike, each.name)
            if other != each.name:
                raise ConfigurationError(
                    f"{self._store.uri()} has objects that are called {other!r} and"
                    f" {each.name!r} here, and the file system of {self._folder} does not tell"
                    " them apart; expected names that differ in more than case and the way that"
                    " accents are written. Rename one, or set SMD_HOME to another file system."
                )

    def _require_room(self, missing: Sequence[DataObject]) -> None:
        needed = 0
        for each in missing:
            part = look_of(self._part_of(each))
            needed += each.size - (min(part[0], each.size) if part else 0)
        found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize
        if needed > free:
            raise ConfigurationError(
                f"the disk of {self._folder} has room for {free:,} bytes, and {needed:,} bytes of"
                f" {self._store.uri()} are to come; expected more room. Remove what is not needed"
                " there, or set SMD_HOME to another disk."
            )

    # --- one object ------------------------------------------------------------------------------

    def _part_of(self, each: DataObject) -> Path:
        text = json.dumps([each.key, each.size, each.etag])
        digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._state / f"{digits}.part"

    def _fetch(self, each: DataObject) -> None:
        target = self._folder / each.name
        part = self._part_of(each)
        try:
            self._fill(each, part)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.replace(part, target)
            look = look_of(target)
            if look is not None:
                append_line(self._journal, json.dumps([each.name, each.etag, *look]).encode())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                size = self.progress.size
                raise ConfigurationError(
                    f"the disk of {self._folder} is full: {error}; expected room for {size:,} bytes"
                    f" of {self._store.uri()}. Remove what is not needed there, or set SMD_HOME to"
                    " another disk."
                ) from None
            if error.errno == errno.ENAMETOOLONG:
                raise ConfigurationError(
                    f"{self._store.uri(each.key)} has a name that is too long for the file system"
                    f" of {self._folder}; expected parts of at most 255 bytes."
                ) from None
            raise
        with self._lock:
            done = self._progress
            self._progress = done._replace(num_done=done.num_done + 1)

    def _fill(self, each: DataObject, part: Path) -> None:
        """Has all bytes of an object in a file. What is wrong is read once more."""
        for is_last in (False, True):
            problem = self._read_all(each, part)
            if not problem:
                return
            part.unlink()
            self._count(-each.size)
            if is_last:
                raise Corrupt(
                    f"{self._store.uri(each.key)} is damaged: {problem}, twice; expected the bytes"
                    " that were put there. Put the object there again."
                )

    def _read_all(self, each: DataObject, part: Path) -> str:
        """Returns: what is wrong with the bytes; empty if nothing is."""
        if not each.etag:
            part.unlink(missing_ok=True)
        with part.open("ab+") as file:
            have = file.tell()
            if have >= each.size > 0:
                # Whole, perhaps; with its last byte the store says what it must add up to.
                have = each.size - 1 if have == each.size else 0
                file.truncate(have)
            self._count(have)
            source = Resumed(self._store, each, have, self._wait, self._pauses_s)
            digest: Digest | None = None
            try:
                while content := source.read(_AT_ONCE):
                    if digest is None and source.checksum_kind:
                        digest = _digest_of(file, have, source.checksum_kind)
                    file.write(content)
                    if digest is not None:
                        digest.update(content)
                    have += len(content)
                    self._count(len(content))
                    if self._cancelled.is_set():
                        raise _Cancelled
            finally:
                source.close()
        if digest is None or digest.value() == source.checksum:
            return ""
        return (
            f"its {digest.kind.upper()} is {digest.value()}, and the store says {source.checksum}"
        )

    def _count(self, more: int) -> None:
        with self._lock:
            self._progress = self._progress._replace(done=self._progress.done + more)

    def _wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise _Cancelled


def _digest_of(file: BinaryIO, size: int, kind: str) -> Digest:
    """Of the bytes that are in a file already, which is open at its end."""
    digest = Digest(kind)
    file.flush()
    position = 0
    while position < size:
        content = os.pread(file.fileno(), min(_AT_ONCE, size - position), position)
        if not content:
            break
        digest.update(content)
        position += len(content)
    return digest
