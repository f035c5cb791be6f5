# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of this machine as a store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from smdistributed.launch.data.stores.store import (
    Changed,
    Look,
    Opened,
    StoredObject,
    StoreError,
    look_of,
)

__all__ = ["COPYING", "FolderStore", "files_below", "in_the_way"]

COPYING = ".smd-copying-"
"""How files are called that are being copied into a folder: they are no objects yet."""

_LOOKS = 10


class FolderStore:
    """The files below a folder, by their paths from there.

    Args:
        root: the folder.
        name: of who copies files there: what is left of a copy that was killed is known by it.
    """

    def __init__(self, root: Path, name: str = "host") -> None:
        self._root = root
        self._prefix = f"{COPYING}{name}-"

    def __str__(self) -> str:
        return str(self._root)

    def uri(self, key: str = "") -> str:
        """The path."""
        return str(self._root / key)

    def bring(self, folder: Path) -> list[str]:
        """Copies all objects to another folder; takes away what an earlier copy has left.

        What is replaced or deleted meanwhile is looked at again.

        Returns: their keys.

        Raises:
            OSError: one cannot be copied.
            StoreError: one is written to all the time.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        for left in self._root.rglob(f"{self._prefix}*"):
            left.unlink(missing_ok=True)
        return [key for key in sorted(files_below(self._root)) if self._brought(key, folder)]

    def _brought(self, key: str, folder: Path) -> bool:
        """Copies one object. Returns: whether it is still there."""
        path = self._root / key
        for _ in range(_LOOKS):
            look = look_of(path)
            if look is None:
                return False
            with contextlib.suppress(Changed, FileNotFoundError):
                self._copy(path, folder / key, look)
                return True
        raise StoreError(f"{path} cannot be copied: it is written to all the time.")

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """Files whose path begins so. Their ETag is how they look."""
        for key, look in sorted(files_below(self._root).items()):
            if key.startswith(prefix):
                yield StoredObject(key, look[0], _etag(look))

    def open(self, key: str, start: int = 0, etag: str = "") -> Opened:
        """As of `Store`."""
        stream = (self._root / key).open("rb")
        stream.seek(start)
        return Opened(stream, start, None)

    def read_error(self, error: Exception, key: str) -> StoreError:
        """As of `Store`."""
        if isinstance(error, StoreError):
            return error
        return StoreError(f"{self.uri(key)} cannot be read: {error}.")

    def put(self, path: Path, key: str, look: Look | None = None) -> None:
        """As of `Store`."""
        self._copy(path, self._root / key, look)

    def _copy(self, source: Path, target: Path, look: Look | None) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=self._prefix, dir=target.parent)
        os.close(descriptor)
        try:
            shutil.copyfile(source, name)
            shutil.copystat(source, name)
            if look is not None and look_of(source) != look:
                raise Changed
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def close(self) -> None:
        """Nothing is open."""

    def delete(self, key: str) -> None:
        """A file, and the folders that are empty without it.

        Raises:
            OSError: the file cannot be taken away.
        """
        path = self._root / key
        # Also if it is a folder by now, or below a file: others have put that there.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
        with contextlib.suppress(OSError):
            while path.parent != self._root:
                path = path.parent
                path.rmdir()


def _etag(look: Look) -> str:
    return "-".join(map(str, look))


def files_below(folder: Path) -> dict[str, Look]:
    """Regular files below a folder, by their path from there.

    Raises:
        OSError: the folder, or one in it, cannot be read.
    """
    found = {}
    for root, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = Path(root, name)
            look = look_of(path)
            if look is not None and not name.startswith(COPYING):
                found[str(path.relative_to(folder))] = look
    return found


def in_the_way(keys: Iterable[str], others: Iterable[str]) -> set[str]:
    """Which are files where one of others needs a folder, or in a folder where one is a file."""
    files = set(others)
    folders = {folder for each in files for folder in _folders_of(each)}
    return {key for key in keys if key in folders or not files.isdisjoint(_folders_of(key))}


def _folders_of(key: str) -> Iterator[str]:
    """`a` and `a/b` of `a/b/c`."""
    at = key.find("/")
    while at >= 0:
        yield key[:at]
        at = key.find("/", at + 1)


def _raise(error: OSError) -> None:
    raise error
