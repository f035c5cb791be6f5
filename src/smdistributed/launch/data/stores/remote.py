# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An S3 store through a process of its own, for those that must not import boto3.

The process is started when something is asked of it. It ends with the one that has started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.objects import DataObject
from smdistributed.launch.data.stores.download import Progress
from smdistributed.launch.data.stores.s3 import S3Settings
from smdistributed.launch.data.stores.store import (
    Changed,
    Look,
    Missing,
    Replaced,
    StoredObject,
    StoreError,
)

__all__ = ["Abandoned", "RemoteStore"]

_POLL_S = 0.2
_END_S = 7.0
_GONE_S = 2.0
_LISTS = 10


class Abandoned(Exception):
    """Nobody wants the answer any more."""


class RemoteStore:
    """A bucket, below a prefix. One request at a time.

    Args:
        bucket: its name.
        settings: how it is reached.
        prefix: comes before all keys.
        is_unwanted: asked while an answer is waited for: once it says so, the process is ended.
        keeps: descriptors that the process has too, such as of a lock.
    """

    def __init__(
        self,
        bucket: str,
        settings: S3Settings,
        prefix: str = "",
        is_unwanted: Callable[[], bool] = lambda: False,
        keeps: Sequence[int] = (),
    ) -> None:
        self._bucket = bucket
        self._settings = settings
        self._prefix = prefix
        self._is_unwanted = is_unwanted
        self._keeps = keeps
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._lock = threading.RLock()

    def __str__(self) -> str:
        return self.uri()

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return self._process.pid if self._process is not None else None

    def uri(self, key: str = "") -> str:
        """As of `Store`."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """As of `Store`."""
        found: list[StoredObject] = []
        for answer in self._asked("list", prefix=prefix):
            found += [StoredObject(*each) for each in answer["objects"]]
        return iter(found)

    def find(self, key: str) -> StoredObject | None:
        """An object; None if it is not there.

        Raises:
            StoreError: nobody can say.
        """
        (answer,) = self._asked("find", key=key)
        return StoredObject(*answer["object"]) if answer["object"] else None

    def download(
        self,
        objects: Sequence[DataObject],
        folder: Path,
        state: Path,
        tell: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        """Has objects in a folder; as `Download.run`.

        Args:
            objects, folder, state: as of `Download`.
            tell: is told how far it is, now and then.

        Raises:
            ConfigurationError: as of `Download.run`.
            OSError: as of `Download.run`.
            Abandoned: nobody wants it any more.
        """
        for answer in self._asked(
            "download", objects=list(objects), folder=str(folder), state=str(state)
        ):
            tell(Progress(*answer["progress"]))

    def bring(self, folder: Path) -> list[str]:
        """Copies all objects to a folder. Returns: their keys.

        What is replaced or deleted meanwhile is listed again.

        Raises:
            ConfigurationError, OSError, Abandoned: as of `download`.
        """
        seen: set[str] = set()
        with tempfile.TemporaryDirectory(prefix=".smd-", dir=folder.parent) as state:
            for number in range(1, _LISTS + 1):
                objects = [DataObject(each.key, *each) for each in self.objects()]
                seen.update(each.key for each in objects)
                try:
                    self.download(objects, folder, Path(state))
                    break
                except (Replaced, Missing):
                    if number == _LISTS:
                        raise
        keys = [each.key for each in objects]
        for key in seen.difference(keys):  # came before it was deleted
            (folder / key).unlink(missing_ok=True)
        return keys

    def read(self, each: DataObject) -> Generator[bytes, None, None]:
        """The bytes of an object, in pieces.

        Raises:
            StoreError: it cannot be read to its end.
            Abandoned: nobody wants it any more.
        """
        for answer in self._asked("read", object=each):
            yield self._bytes(answer["size"])

    def put(self, path: Path, key: str, look: Look | None = None) -> None:
        """As of `Store`."""
        for _ in self._asked("put", path=str(path), key=key, look=look):
            pass

    def delete(self, key: str) -> None:
        """As of `Store`."""
        for _ in self._asked("delete", key=key):
            pass

    def close(self) -> None:
        """Ends the process. Another request starts another one."""
        process, self._process = self._process, None
        self._buffer = b""
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()  # it must not wait for a reader
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- requests and answers --------------------------------------------------------------------

    def _asked(self, op: str, **values: Any) -> Iterator[dict[str, Any]]:
        with self._lock:
            self._start()
            is_over = False
            try:
                self._send({"op": op, **values})
                while (answer := self._answer())["kind"] not in ("done", "error"):
                    yield answer
                is_over = True
            finally:
                if not is_over:  # what is still to come belongs to no request
                    self.close()
        if answer["kind"] == "error":
            raise _error_of(answer)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "smdistributed.launch.data.stores.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._keeps,
            bufsize=0,
        )
        self._send(
            {
                "op": "begin",
                "bucket": self._bucket,
                "prefix": self._prefix,
                "settings": dataclasses.asdict(self._settings),
            }
        )
        self._answer()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(json.dumps(request).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except OSError as error:
            raise self._lost() from error

    def _answer(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._receive()
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise StoreError(
                f"the process that reads and writes {self.uri()} has printed {line[:80]!r}, which"
                " is no answer; expected nothing else on its standard output. Look for what prints"
                " in every Python of this machine, such as a sitecustomize.py."
            ) from None
        return answer

    def _bytes(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        content, self._buffer = self._buffer[:size], self._buffer[size:]
        return content

    def _receive(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], _POLL_S)[0]:
            if self._is_unwanted():
                raise Abandoned
        more = self._process.stdout.read(1 << 18)
        if not more:
            raise self._lost()
        self._buffer += more

    def _lost(self) -> StoreError:
        status = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(_GONE_S)
        return StoreError(
            f"the process that reads and writes {self.uri()} is gone, with status {status} (-n:"
            " signal n); expected it to stay. Was it killed, for want of memory? What it has"
            " printed is in the log of the agent.",
            is_passing=True,
        )


def _error_of(answer: dict[str, Any]) -> Exception:
    if answer["error"] == "changed":
        return Changed()
    if answer["error"] == "os":
        return OSError(*answer["args"])  # of the class that its number has
    if answer["error"] == "ConfigurationError":
        return ConfigurationError(answer["text"])
    known: dict[str, type[StoreError]] = {"Replaced": Replaced, "Missing": Missing}
    kind = known.get(answer["error"], StoreError)
    return kind(answer["text"], is_passing=answer["is_passing"])
