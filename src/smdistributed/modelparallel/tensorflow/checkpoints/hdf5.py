# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files of HDF5 on a disk that is full.

HDF5 keeps what it writes until a file is closed. If it cannot write it then, it tries once more for
each object that is freed, and ends the process by a segmentation fault. So it writes into a file
that takes everything, and remembers its first error.

Source: our choice.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["raising_what_is_full"]

_NEW = ("w", "w-", "x")


class _File(io.FileIO):
    """Takes what is written to it; once that has failed, without keeping it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes all of it, and returns its size in bytes."""
        view = memoryview(data).cast("B")
        written = 0
        with self._remembering():
            while written < len(view):
                written += super().write(view[written:]) or 0
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """As of files."""
        with self._remembering():
            super().truncate(size)
        return self.tell() if size is None else size

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


@contextlib.contextmanager
def raising_what_is_full(directory: str) -> Iterator[None]:
    """While it is open, new files of HDF5 in a directory are written as this module says.

    Raises:
        OSError: at its end, one could not be written.
    """
    h5py: Any = sys.modules.get("h5py")
    if h5py is None:
        yield
        return
    original = h5py.File
    files: list[_File] = []

    class File(original):  # type: ignore[misc,valid-type] # which is asked for by isinstance()
        def __init__(self, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            is_path = isinstance(name, str | os.PathLike)
            if is_path and mode in _NEW and os.path.dirname(os.path.abspath(name)) == directory:
                files.append(_File(os.fspath(name)))
                name, mode = files[-1], "w"
            super().__init__(name, mode, *args, **kwargs)

    h5py.File = File
    try:
        yield
    finally:
        h5py.File = original
        for each in files:
            each.close()
        for each in files:
            if each.error is not None:
                raise each.error
