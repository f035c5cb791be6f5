# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files in pieces: read on one end, and whole or not there on the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from smdistributed.launch.courier.messages import MOST_BODY, ProtocolError
from smdistributed.launch.storage import TEMPORARY

__all__ = ["Arriving", "below", "pieces_of"]


def below(root: Path, path: str) -> Path:
    """A path below a folder, that came from the other end.

    Raises:
        ProtocolError: it leads out of the folder, or is none.
    """
    parts = path.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in path:
        raise ProtocolError(f"{path!r:.200} is no path below a folder.")
    return root.joinpath(*parts)


def pieces_of(file: BinaryIO, most: int = MOST_BODY) -> Iterator[tuple[int, bytes, bool]]:
    """The pieces of a file, of which an empty one has one: where, what, and whether the last."""
    offset, piece = 0, file.read(most)
    while True:
        following = file.read(most)
        yield offset, piece, not following
        if not following:
            return
        offset, piece = offset + len(piece), following


class Arriving:
    """Files that come in pieces, one after the other. Each is there when it is whole.

    Args:
        name: is in the names of files that are not whole; nobody else beside has the same.
    """

    def __init__(self, name: str = "here") -> None:
        self._beside_name = f"{TEMPORARY}arriving-{name}"[:255]
        self._file: BinaryIO | None = None
        self._target = Path()
        self._size = 0
        self._has_failed = False  # the rest of that file is of no use

    def add(
        self,
        target: Path,
        offset: int,
        body: bytes,
        *,
        is_last: bool,
        modified_ns: int,
        mode: int = 0o600,
    ) -> bool:
        """Takes a piece.

        Args:
            target: of the file.
            offset: of the piece in it. With 0 it begins; one that is not whole was given up.
            body: of the piece.
            is_last: the file is whole with it.
            modified_ns: the time of its last change, in nanoseconds since 1970.
            mode: its permissions.

        Returns: whether it is whole now.

        Raises:
            ProtocolError: that piece does not follow.
            OSError: it cannot be written. Nothing is left of it, and its other pieces are ignored.
        """
        if offset == 0:
            self.drop()
            self._target, self._size, self._has_failed = target, 0, False
        if target != self._target or offset != self._size:
            raise ProtocolError(f"{target.name!r:.100} has a piece at {offset} that follows none.")
        self._size += len(body)
        if self._has_failed:
            return False
        try:
            return self._add(body, is_last, modified_ns, mode)
        except (OSError, OverflowError) as error:
            self.drop()
            self._has_failed = True
            if isinstance(error, OverflowError):  # of the time
                raise ProtocolError(f"{target.name!r:.100} is of the time {modified_ns}.") from None
            raise

    def _add(self, body: bytes, is_last: bool, modified_ns: int, mode: int) -> bool:
        if self._file is None:
            self._target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._beside(), flags, 0o600), "wb", buffering=0)
        rest = memoryview(body)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        if not is_last:
            return False
        os.fchmod(self._file.fileno(), mode & 0o777)
        os.utime(self._file.fileno(), ns=(modified_ns, modified_ns))
        self._file.close()
        self._file = None
        os.replace(self._beside(), self._target)
        self._size = -1  # nothing follows
        return True

    def drop(self) -> None:
        """Forgets the file that is not whole."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self._beside().unlink(missing_ok=True)

    def _beside(self) -> Path:
        return self._target.with_name(self._beside_name)

    def sweep(self, folder: Path) -> None:
        """Removes what another process of this name, which was killed, has left below a folder."""
        for left in folder.rglob(self._beside_name):
            with contextlib.suppress(OSError):
                left.unlink()
