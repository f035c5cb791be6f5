# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is new in files, as messages for who keeps them elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from smdistributed.launch.courier.files import pieces_of
from smdistributed.launch.courier.messages import MOST_BODY, Dropped, Grown, Kept, Message

__all__ = ["Growth", "Tree"]

# What tells whether a file has changed: size, time of the last change, and which file it is.
_Look = tuple[int, int, int]


class Growth:
    """Of files that are only ever added to.

    Args:
        root: a folder; files are told by their path below it.
        most: bytes of a piece.
    """

    def __init__(self, root: Path, most: int = MOST_BODY) -> None:
        self._root = root
        self._most = most
        self._offsets: dict[Path, int] = {}

    def news(self, path: Path) -> Iterator[Message]:
        """What was added to a file since it was last asked for; nothing if it cannot be read."""
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            while content := file.read(self._most):
                offset = self._offsets.get(path, 0)
                self._offsets[path] = offset + len(content)
                yield Grown(str(path.relative_to(self._root)), offset, content)


class Tree:
    """Of files that appear whole, and are replaced whole.

    Args:
        store: as messages call it.
        folder: of the files. What is there now is known already.
        most: bytes of a piece.
    """

    def __init__(self, store: str, folder: Path, most: int = MOST_BODY) -> None:
        self._store = store
        self._folder = folder
        self._most = most
        self._told = _looks(folder)

    def changes(self) -> Iterator[Message]:
        """What is other than it was told."""
        now = _looks(self._folder)
        for path in self._told.keys() - now.keys():
            del self._told[path]
            yield Dropped(self._store, path)
        for path, look in now.items():
            if self._told.get(path) == look:
                continue
            with contextlib.suppress(FileNotFoundError), (self._folder / path).open("rb") as file:
                modified_ns = os.fstat(file.fileno()).st_mtime_ns
                for body, is_last in pieces_of(file, self._most):
                    yield Kept(self._store, path, modified_ns, is_last, body)
                self._told[path] = look


def _looks(folder: Path) -> dict[str, _Look]:
    """By their path below the folder. What is being written is left out."""
    found = {}
    for above, names, files in os.walk(folder):
        names[:] = [each for each in names if not each.startswith(".smd-")]
        for name in files:
            path = Path(above, name)
            with contextlib.suppress(OSError):
                look = path.stat()
                if not name.startswith(".smd-"):
                    key = str(path.relative_to(folder))
                    found[key] = (look.st_size, look.st_mtime_ns, look.st_ino)
    return found
