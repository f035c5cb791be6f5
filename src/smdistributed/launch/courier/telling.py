# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is new in files, as messages for who keeps them elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator
from pathlib import Path

from smdistributed.launch.courier.files import pieces_of
from smdistributed.launch.courier.messages import MOST_BODY, Dropped, Grown, Kept, Message
from smdistributed.launch.storage import TEMPORARY

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
        folder: of the files.
        most: bytes of a piece.
        is_known: what is there now is known already.
        names: of files; None: all are told.
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        most: int = MOST_BODY,
        *,
        is_known: bool = True,
        names: Container[str] | None = None,
    ) -> None:
        self._store = store
        self._folder = folder
        self._most = most
        self._names = names
        self._told = self._looks() if is_known else {}

    def changes(self) -> Iterator[Message]:
        """What is other than it was told."""
        now = self._looks()
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

    def _looks(self) -> dict[str, _Look]:
        """By their path below the folder. What is being written is left out."""
        found = {}
        for above, folders, files in os.walk(self._folder):
            folders[:] = [each for each in folders if not each.startswith(TEMPORARY)]
            for name in files:
                is_told = self._names is None or name in self._names
                with contextlib.suppress(OSError):
                    path = Path(above, name)
                    look = path.stat()
                    if is_told and not name.startswith(TEMPORARY):
                        key = str(path.relative_to(self._folder))
                        found[key] = (look.st_size, look.st_mtime_ns, look.st_ino)
        return found
