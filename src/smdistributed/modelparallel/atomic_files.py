# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A file that is replaced whole, or not at all.

It is written under a temporary name in the same directory, flushed to the disk, and renamed.
Whenever the process or the host dies, the name holds the previous content or the new one. After an
error in Python the temporary file is gone. After a kill it stays, and the next write of the same
file by the same writer overwrites and renames it, so restarts do not fill the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

__all__ = ["OpenFile", "could_not_write", "replace_file", "synchronise_directory"]

# Of a name, to which a temporary one adds up to 40; file systems end at 255.
_LONGEST_STEM_BYTES = 200
# What a file system without the operation says.
_UNSUPPORTED = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

_lock = threading.Lock()
_in_use: set[str] = set()


def replace_file(path: str, identity: str, write: Callable[[OpenFile], None]) -> None:
    """Lets `write` fill a file, which takes the place of `path` if nothing was raised. Blocking.

    A file that was there keeps its permissions, and a link keeps pointing at what it pointed at. A
    pipe or device is written to as it is.

    Args:
        path: what to replace. Its directory must be there.
        identity: tells this writer from the others of the job; part of the temporary name.
        write: takes a file to write to.

    Raises:
        FileNotFoundError: the directory is not there.
        OSError: the disk is full (with the free bytes), or the file cannot be written.
        Exception: what `write` raises.
    """
    target = os.path.realpath(path)  # a link stays, and what it points at is replaced
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(
            errno.EISDIR, f"{path} is a directory; expected a file. Add the name of one to the path"
        )
    failures_of_object: list[BaseException] = []

    def write_object(file: OpenFile) -> None:
        try:
            write(file)
        except BaseException as error:
            # torch's writer ends the file even after an error, and then raises about that instead.
            if file.error is not None:
                raise file.error from None
            failures_of_object.append(error)
            raise

    try:
        if mode is not None and not stat.S_ISREG(mode):
            _write(os.open(target, os.O_WRONLY | os.O_CLOEXEC), write_object, is_regular=False)
            return
        with _temporary_name(target, identity) as temporary:
            try:
                descriptor = os.open(temporary, _FLAGS, 0o666)
                if mode is not None:
                    with contextlib.suppress(PermissionError):
                        os.fchmod(descriptor, stat.S_IMODE(mode))
                _write(descriptor, write_object)
                os.replace(temporary, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        synchronise_directory(os.path.dirname(target))
    except OSError as error:
        if error in failures_of_object:
            raise
        raise could_not_write(path, target, error) from error


def _write(descriptor: int, write: Callable[[OpenFile], None], is_regular: bool = True) -> None:
    """Lets `write` fill an open file, and closes it when all of it is on the disk."""
    with OpenFile(descriptor) as file:
        write(file)
        if is_regular:
            _synchronise(descriptor)


@contextlib.contextmanager
def _temporary_name(target: str, identity: str) -> Iterator[str]:
    """A name in the same directory, hidden, and for one thread of one rank at a time.

    It is the same after a restart, so that what a killed writer left is overwritten.
    """
    directory, name = os.path.split(target)
    if len(os.fsencode(name)) > _LONGEST_STEM_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    with _lock:
        for number in itertools.count():
            temporary = os.path.join(directory, f".{name}.{identity}.{number}.smp-tmp")
            if temporary not in _in_use:
                break
        _in_use.add(temporary)
    try:
        yield temporary
    finally:
        with _lock:
            _in_use.discard(temporary)


def _synchronise(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def synchronise_directory(directory: str) -> None:
    """Makes a rename last; the file is whole without it, so a directory that cannot is left."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def could_not_write(path: str, target: str, error: OSError) -> OSError:
    """Why a file could not be written, with what to do.

    Args:
        path: as the caller has named it.
        target: what it points at.
        error: of the operating system.
    """
    directory = os.path.dirname(target)
    if isinstance(error, FileNotFoundError) and not os.path.isdir(directory):
        text = (
            f"{path} cannot be written, as the directory {directory} is not there; expected it to"
            " be, as a save makes none. Make it before, with os.makedirs(..., exist_ok=True)"
        )
    elif error.errno in _FULL:
        text = (
            f"{path} could not be written: {os.strerror(error.errno or 0)}. Without the unfinished"
            f" file, which is removed, {_free(directory)}; expected room for the whole file beside"
            " the one that it replaces. Delete old checkpoints, or save elsewhere. What was there"
            " before is untouched"
        )
    else:
        text = (
            f"{path} could not be written: {error.strerror or error}; expected to be able to make"
            f" a file in {directory} and to rename it. Check its permissions and its disk"
            f" ({_free(directory)}). What was there before is untouched"
        )
    return OSError(error.errno or errno.EIO, text)  # Python makes it PermissionError and so on


def _free(directory: str) -> str:
    try:
        return f"{shutil.disk_usage(directory).free} bytes are free in {directory}"
    except OSError:
        return "the free bytes are unknown"


class OpenFile:
    """What `write` gets: a file that remembers its first error.

    torch calls it from C++, and may report an error of its own that has lost the cause.
    """

    def __init__(self, descriptor: int) -> None:
        # Without a buffer: torch writes large blocks, and an error belongs to its write.
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 (closed by __exit__)
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        """Writes all of it; returns its size in bytes."""
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += self._write_some(view[written:])
        except BaseException as error:
            self.error = self.error or error
            raise
        return written

    def _write_some(self, data: memoryview) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing is held back; other pickle modules call it."""
