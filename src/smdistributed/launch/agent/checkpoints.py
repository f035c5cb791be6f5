# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a host, copied to a store while the script runs, and back when it starts again.

A file is copied when it has looked the same twice, and appears in the store whole, so that none is
there half-written. What the script deletes is deleted there. What others add there later does not
come here. Intermediate output is copied likewise, but never deleted, nor brought back.

Source: launch specification, sections 6.1 and 6.3.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["CheckpointSync"]

_PERIOD_S = 1.0
_TEMPORARY = ".smd-copying-"

# What tells whether a file has changed: size, time of the last change, and which file it is.
_Look = tuple[int, int, int]


class _Changed(Exception):
    """A file was written to while it was copied."""


class CheckpointSync:
    """Of one host.

    Args:
        local: the folder that the script writes to; made if it is not there.
        store: where its files are kept.
        say: is told of what could not be copied.
        name: of this host in its job: what it copies has it in the name until it is whole.
        deletes: what the script deletes; else the store keeps it.
        called: what a file is, in words.
    """

    def __init__(
        self,
        local: Path,
        store: Path,
        say: Callable[[str], None],
        name: str = "host",
        *,
        deletes: bool = True,
        called: str = "checkpoint",
    ) -> None:
        self._deletes = deletes
        self._called = called
        self._local = local
        self._store = store
        self._say = say
        self._prefix = f"{_TEMPORARY}{name}-"
        self._seen: dict[str, _Look] = {}
        self._copied: dict[str, _Look] = {}
        self._missing: set[str] = set()
        self._last_problem = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def restore(self) -> None:
        """Copies what the store has to the script's folder.

        Raises:
            OSError: it cannot be copied.
        """
        self._local.mkdir(parents=True, exist_ok=True)
        self._store.mkdir(parents=True, exist_ok=True)
        for left in self._store.rglob(f"{self._prefix}*"):  # of a copy that was killed
            left.unlink(missing_ok=True)
        for name, look in _files(self._store).items():
            target = self._local / name
            self._copy(self._store / name, target, look)
            found = _look(target)
            if found is not None:
                self._copied[name] = found

    def begin(self) -> None:
        """Copies from now on, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def end(self, *, ended_well: bool = True) -> str:
        """Copies what is there, now that nobody writes any more.

        Args:
            ended_well: else a file that was being written is a part of one, perhaps: what the store
                has of it stays, unless it had looked the same before.

        Returns: what could not be copied; empty if all was.
        """
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            now = _files(self._local)
            self._seen.update(
                {
                    name: look
                    for name, look in now.items()
                    if ended_well or not (self._store / name).exists()
                }
            )
            if ended_well:
                self._missing = {name for name in self._copied if name not in now}
        return self.copy()

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            with contextlib.suppress(Exception):  # or nothing would be copied any more
                self.copy()

    def copy(self) -> str:
        """Copies what is new and has not changed since the last look; what fails is told once.

        Returns: what could not be copied; empty if all was.
        """
        problem = ""
        try:
            now = _files(self._local)
        except OSError:
            return ""  # it is gone, or cannot be read: nothing tells that files were deleted
        missing = {name for name in self._copied if name not in now}
        for name in missing & self._missing:  # for two looks: the script has deleted it
            if self._deletes:
                self._remove(self._store / name)
            del self._copied[name]
        self._missing = missing
        for name, look in now.items():
            if self._copied.get(name) == look or self._seen.get(name) != look:
                continue
            try:
                self._copy(self._local / name, self._store / name, look)
            except (FileNotFoundError, _Changed):
                continue  # the script has deleted it, or goes on with it: again next time
            except OSError as error:
                problem = f"{self._called} {name} could not be copied to {self._store}: {error}"
                continue
            self._copied[name] = look
        self._seen = now
        if problem and problem != self._last_problem:
            self._say(problem)
        self._last_problem = problem
        return problem

    def _remove(self, path: Path) -> None:
        """A file of the store, and the folders that are empty without it."""
        with contextlib.suppress(OSError):
            path.unlink()
            while path.parent != self._store:
                path = path.parent
                path.rmdir()

    def _copy(self, source: Path, target: Path, look: _Look) -> None:
        """A copy that is whole or not there, of a file that looks so."""
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=self._prefix, dir=target.parent)
        os.close(descriptor)
        try:
            shutil.copyfile(source, name)
            shutil.copystat(source, name)
            if _look(source) != look:
                raise _Changed
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _files(folder: Path) -> dict[str, _Look]:
    """Regular files below a folder, by their path from there.

    Raises:
        OSError: the folder, or one in it, cannot be read.
    """
    found = {}
    for root, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = Path(root, name)
            look = _look(path)
            if look is not None and not name.startswith(_TEMPORARY):
                found[str(path.relative_to(folder))] = look
    return found


def _raise(error: OSError) -> None:
    raise error


def _look(path: Path) -> _Look | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns, found.st_ino) if path.is_file() else None
