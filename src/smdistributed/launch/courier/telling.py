# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is new in files, as messages for who keeps them elsewhere."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

from smdistributed.launch.courier.files import pieces_of
from smdistributed.launch.courier.messages import MOST_BODY, Dropped, Grown, Kept, Message
from smdistributed.launch.data.stores.folder import in_the_way
from smdistributed.launch.storage import TEMPORARY

__all__ = ["Growth", "Tree"]

# What tells whether a file has changed: size, time of the last change, and which file it is.
_Look = tuple[int, int, int]

_PERIOD_S = 1.0


class Growth:
    """Of files that are only ever added to.

    Args:
        root: a folder; files are told by their path below it.
        most: bytes of a piece.
        known: files; what they have now is known already.
    """

    def __init__(self, root: Path, most: int = MOST_BODY, known: Iterable[Path] = ()) -> None:
        self._root = root
        self._most = most
        self._offsets = {path: path.stat().st_size for path in known if path.is_file()}

    def news(self, path: Path) -> Iterator[Message]:
        """What was added to a file since it was last asked for; nothing if it cannot be read.

        It may have no end, if somebody writes faster than this is read.
        """
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
        is_whole: whether the folder is as its writers have left it: what is missing in one that
            somebody takes away was not theirs to remove.
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        most: int = MOST_BODY,
        *,
        is_known: bool = True,
        names: Container[str] | None = None,
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._folder = folder
        self._most = most
        self._names = names
        self._is_whole = is_whole
        self._looked_at = float("-inf")
        self._told: dict[str, _Look] = {}
        if is_known:
            with contextlib.suppress(FileNotFoundError):
                self._told = self._looks()

    def some(self) -> Iterator[Message]:
        """What is other than it was told; nothing if that was asked for a moment ago.

        What cannot be read now is for the next time.
        """
        if time.monotonic() - self._looked_at < _PERIOD_S:
            return
        with contextlib.suppress(OSError):
            yield from self.changes()
        self._looked_at = time.monotonic()

    def changes(self) -> Iterator[Message]:
        """What is other than it was told.

        Raises:
            OSError: something cannot be read.
        """
        try:
            now = self._looks()
        except FileNotFoundError:  # nothing was ever kept, or nothing is left of all
            return
        gone = self._told.keys() - now.keys()
        obstacles = in_the_way(gone, now) if gone else set()
        yield from self._drops(obstacles)
        for path, look in now.items():
            if self._told.get(path) == look:
                continue
            with contextlib.suppress(FileNotFoundError), (self._folder / path).open("rb") as file:
                found = os.fstat(file.fileno())
                for offset, body, is_last in pieces_of(file, self._most):
                    mode = found.st_mode & 0o777
                    yield Kept(self._store, path, offset, mode, found.st_mtime_ns, is_last, body)
                self._told[path] = look
        # Last: else the other end might have neither what was replaced nor what replaces it.
        yield from self._drops(gone - obstacles)

    def _drops(self, paths: Iterable[str]) -> Iterator[Message]:
        for path in paths:
            if self._is_whole():
                del self._told[path]
                yield Dropped(self._store, path)

    def _looks(self) -> dict[str, _Look]:
        """By their path below the folder. What is being written is left out.

        Raises:
            OSError: a folder or file cannot be looked at, which does not say that it is not there.
        """
        found = {}
        # Where only some names count there may be folders that a script has made unreadable.
        for above, folders, files in os.walk(self._folder, onerror=None if self._names else _raise):
            folders[:] = [each for each in folders if not each.startswith(TEMPORARY)]
            for name in files:
                is_told = self._names is None or name in self._names
                if not is_told or name.startswith(TEMPORARY):
                    continue
                path = Path(above, name)
                with contextlib.suppress(FileNotFoundError):
                    look = path.stat()
                    if stat.S_ISREG(look.st_mode):
                        key = str(path.relative_to(self._folder))
                        found[key] = (look.st_size, look.st_mtime_ns, look.st_ino)
        return found


def _raise(error: OSError) -> None:
    raise error
