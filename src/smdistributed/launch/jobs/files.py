# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there, whoever dies while they are written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "Lock",
    "append_line",
    "copy_whole",
    "end_line",
    "make_writable",
    "one_at_a_time",
    "write_or_make",
    "write_whole",
]

# Who only looks whether a lock is held has it for a moment.
_LOOK_S = 0.5


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that readers find the old content or the new one, and never a part.

    Raises:
        OSError: it cannot be written; what was there is unchanged.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    _sync_directory(path.parent)


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file so that readers find the old content or the new one, and never a part.

    Raises:
        OSError: it cannot be copied; what was there is unchanged.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(descriptor)
    try:
        shutil.copyfile(source, name)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def write_or_make(path: Path, content: bytes) -> None:
    """`write_whole`; an empty file, for which no room is needed, if the disk is full.

    Raises:
        OSError: not even that can be made.
    """
    try:
        write_whole(path, content)
    except OSError:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _sync_directory(path: Path) -> None:
    """Or the new name may be gone after a power failure, though the data are there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: bytes) -> None:
    """Adds a line to a file. Lines of several processes do not mix.

    Args:
        path: of the file; made if it is not there.
        line: without a line feed.

    Raises:
        OSError: it cannot be written. A part of the line may be there: readers drop what has no
            line feed, and the next line begins on a line of its own.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # let go of with the descriptor
        size = os.fstat(descriptor).st_size
        begin = b"" if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n" else b"\n"
        rest = memoryview(begin + line + b"\n")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def end_line(path: Path) -> None:
    """Ends the last line of a file, whose writer may have been lost in the middle of it.

    Raises:
        OSError: it cannot be written. One that is not there has no line.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        if file.seek(0, 2) and file.seek(-1, 2) >= 0 and file.read() != b"\n":
            file.write(b"\n")


def make_writable(folder: Path) -> None:
    """Lets its owner change what is in a folder, and in those below it; links are not followed."""
    folder.chmod(0o700)
    for above, names, _ in os.walk(folder):
        for path in (Path(above, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """In this block no other process is in a block of the same file; waits for it.

    Args:
        path: of the file; made if it is not there.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# Held by this process.
_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _drop_all() -> None:
    """What is forked, such as a worker of a DataLoader, does not hold what its parent holds."""
    for lock in _held:
        lock.hand_over()


os.register_at_fork(after_in_child=_drop_all)


class Lock:
    """A lock on a file, which its process holds as long as it lives.

    Unlike a process's number, which may be another process's tomorrow, it fools nobody: the kernel
    lets go of it when the process ends, however it ends. A process can start another one that holds
    the lock from its first moment on: `descriptor` is passed on and `adopt`ed there.

    Args:
        path: of the file; made if it is not there, and never removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """Of the open file, for a process that is to hold the lock too."""
        assert self._descriptor is not None
        return self._descriptor

    def acquire(self) -> bool:
        """Takes it. Returns: whether nobody else has it, and keeps it."""
        if self._descriptor is not None:
            return True
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Not one of the first three, which may be closed: a child would get something else there.
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(opened)
        until = time.monotonic() + _LOOK_S
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > until:
                        os.close(descriptor)
                        return False
                    time.sleep(_LOOK_S / 50)
                else:
                    self._hold(descriptor)
                    return True
        except BaseException:
            os.close(descriptor)
            raise

    def adopt(self, descriptor: int) -> None:
        """Takes it over from the process that has started this one."""
        os.set_inheritable(descriptor, False)
        self._hold(descriptor)

    def take_over(self, other: Lock) -> None:
        """Holds it in the place of another object, whose file was renamed to this one's."""
        self._hold(other.descriptor)
        other._descriptor = None

    def _hold(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(self)

    def hand_over(self) -> None:
        """Another process holds it now, by the descriptor that it was given."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def release(self) -> None:
        """Lets go of it, also for processes that were forked meanwhile."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.hand_over()

    def is_held_elsewhere(self) -> bool:
        """Whether another process has it now."""
        if self._descriptor is not None:
            return False
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False
