# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a store of objects can do.

Words: a key names an object in its store. An ETag is a text that changes when the object does.
A look is what tells whether a file has changed.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from smdistributed._common.errors import ConfigurationError

__all__ = [
    "Changed",
    "Checksum",
    "Corrupt",
    "Digest",
    "Look",
    "Missing",
    "Opened",
    "Replaced",
    "Store",
    "StoreError",
    "StoredObject",
    "look_of",
    "md5_of",
]

Look = tuple[int, int, int]
"""Of a file: its size, the time of its last change, and its number."""

_MD5 = re.compile(r"[0-9a-f]{32}")


class StoreError(ConfigurationError):
    """Objects cannot be read or written: says which, why, and what to do.

    Attributes:
        is_passing: the same may work a moment later.
    """

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class Replaced(StoreError):
    """The object is another one than when it was listed."""


class Missing(StoreError):
    """There is no such bucket, object or upload."""


class Corrupt(StoreError):
    """The bytes are not those that the store says that they are."""


class Changed(Exception):
    """A file was written to while it was copied into a store."""


class StoredObject(NamedTuple):
    """One object of a store.

    Attributes:
        key: in the store.
        size: in bytes.
        etag: empty if the store has none.
    """

    key: str
    size: int
    etag: str


class Checksum(NamedTuple):
    """What a store says that the bytes of an object add up to.

    Attributes:
        kind: `md5`, `crc32`, `sha1` or `sha256`.
        value: in hexadecimal digits.
    """

    kind: str
    value: str


class Opened(NamedTuple):
    """An object that is being read.

    Attributes:
        stream: of its bytes, from where it was asked for.
        start: where that is; 0 if the store gives the whole, whatever was asked for.
        checksum: of the whole object; None if the store gives none that can be checked here.
    """

    stream: BinaryIO
    start: int
    checksum: Checksum | None


class Store(Protocol):
    """A map from keys to objects. Each object is whole or not there."""

    def uri(self, key: str = "") -> str:
        """How an object is called, for people."""

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """Objects whose key begins with a text, in the order of their keys.

        Raises:
            StoreError: they cannot be listed.
        """

    def open(self, key: str, start: int = 0, etag: str = "") -> Opened:
        """Begins to read an object; one try.

        Args:
            key: of the object.
            start: the first byte that is wanted.
            etag: that the object must have; empty: any.

        Raises:
            StoreError: it cannot be read. `Replaced`: it has another ETag.
        """

    def read_error(self, error: Exception, key: str) -> StoreError:
        """What an error means that a stream of `open` has raised."""

    def put(self, path: Path, key: str, look: Look | None = None) -> None:
        """Makes an object of a file.

        Args:
            path: of the file.
            key: of the object.
            look: that the file must have at the end; None: any.

        Raises:
            Changed: it has another one; the object is as it was.
            StoreError: it cannot be written.
            OSError: the file cannot be read.
        """

    def delete(self, key: str) -> None:
        """Takes an object away; one that is not there is no error.

        Raises:
            StoreError: it cannot be taken away.
        """


class Digest:
    """Adds up bytes as a checksum does.

    Args:
        kind: as of `Checksum`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._crc = 0
        self._hash: Any = None if kind == "crc32" else hashlib.new(kind, usedforsecurity=False)

    def update(self, content: bytes) -> None:
        """Goes on with these bytes."""
        if self._hash is None:
            self._crc = zlib.crc32(content, self._crc)
        else:
            self._hash.update(content)

    def value(self) -> str:
        """Of all bytes so far, in hexadecimal digits."""
        return f"{self._crc:08x}" if self._hash is None else str(self._hash.hexdigest())


def md5_of(etag: str) -> Checksum | None:
    """The checksum that an ETag is, if it may be one: of an object in one part, not encrypted."""
    plain = etag.strip('"')
    return Checksum("md5", plain) if _MD5.fullmatch(plain) else None


def look_of(path: Path) -> Look | None:
    """How a file looks; None if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns, found.st_ino) if path.is_file() else None
