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


def pieces_of(file: BinaryIO, most: int = MOST_BODY) -> Iterator[tuple[bytes, bool]]:
    """The pieces of a file, of which an empty one has one; and whether it is the last."""
    piece = file.read(most)
    while True:
        following = file.read(most)
        yield piece, not following
        if not following:
            return
        piece = following


class Arriving:
    """Files that come in pieces, one after the other. Each is there when it is whole."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._target = Path()
        self._has_failed = False  # the rest of that file is of no use

    def add(
        self, target: Path, body: bytes, *, is_last: bool, modified_ns: int, mode: int = 0o600
    ) -> bool:
        """Takes a piece.

        Args:
            target: of the file. It follows the last piece of another one.
            body: of the piece.
            is_last: the file is whole with it.
            modified_ns: the time of its last change, in nanoseconds since 1970.
            mode: its permissions.

        Returns: whether it is whole now.

        Raises:
            ProtocolError: the file before it was not whole.
            OSError: it cannot be written. Nothing is left of it, and its other pieces are ignored.
        """
        if self._has_failed and target == self._target:
            self._has_failed = not is_last
            return False
        try:
            return self._add(target, body, is_last, modified_ns, mode)
        except OSError:
            self.drop()
            self._has_failed = not is_last
            raise

    def _add(self, target: Path, body: bytes, is_last: bool, modified_ns: int, mode: int) -> bool:
        if self._file is None:
            self._target = target
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._beside(), flags, 0o600), "wb", buffering=0)
        elif target != self._target:
            raise ProtocolError(f"{target.name!r} begins before {self._target.name!r} has ended.")
        rest = memoryview(body)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        if not is_last:
            return False
        os.fchmod(self._file.fileno(), mode & 0o777)
        os.utime(self._file.fileno(), ns=(modified_ns, modified_ns))
        self._file.close()
        self._file = None
        os.replace(self._beside(), target)
        return True

    def drop(self) -> None:
        """Forgets the file that is not whole."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self._beside().unlink(missing_ok=True)

    def _beside(self) -> Path:
        return self._target.with_name(
            f"{TEMPORARY}arriving-{os.getpid()}-{self._target.name}"[:255]
        )
