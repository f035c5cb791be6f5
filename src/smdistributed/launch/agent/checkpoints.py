# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a host, copied to a store while the script runs, and back when it starts again.

A file is copied when it has looked the same twice, and appears in the store whole, so that none is
there half-written. What the script deletes is deleted there, once what is new has been copied: a
host that is lost leaves the old checkpoint or the new one. What others add there later does not
come here. Intermediate output is copied likewise, but never deleted, nor brought back.

Source: launch specification, sections 6.1 and 6.3.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from smdistributed.launch.data.stores.folder import files_below, in_the_way
from smdistributed.launch.data.stores.remote import Abandoned
from smdistributed.launch.data.stores.store import (
    Changed,
    Look,
    StoredObject,
    StoreError,
    look_of,
)

__all__ = ["CheckpointSync", "SyncStore"]

_PERIOD_S = 1.0


class SyncStore(Protocol):
    """What checkpoints are kept in: `FolderStore` or `RemoteStore`."""

    def objects(self, prefix: str = "") -> Iterable[StoredObject]:
        """As of `Store`."""

    def put(self, path: Path, key: str, look: Look | None = None) -> None:
        """As of `Store`."""

    def delete(self, key: str) -> None:
        """As of `Store`."""

    def bring(self, folder: Path) -> list[str]:
        """Copies all objects to a folder. Returns: their keys."""

    def close(self) -> None:
        """Nothing more is asked of it."""


class CheckpointSync:
    """Of one host.

    Args:
        local: the folder that the script writes to; made if it is not there.
        store: where its files are kept.
        say: is told of what could not be copied.
        deletes: what the script deletes; else the store keeps it.
        called: what a file is, in words.
    """

    def __init__(
        self,
        local: Path,
        store: SyncStore,
        say: Callable[[str], None],
        *,
        deletes: bool = True,
        called: str = "checkpoint",
    ) -> None:
        self._deletes = deletes
        self._called = called
        self._local = local
        self._store = store
        self._say = say
        self._seen: dict[str, Look] = {}
        self._copied: dict[str, Look] = {}
        self._missing: set[str] = set()
        self._last_problem = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def restore(self) -> None:
        """Copies what the store has to the script's folder.

        Raises:
            OSError, ConfigurationError: it cannot be copied.
        """
        self._local.mkdir(parents=True, exist_ok=True)
        for name in self._store.bring(self._local):
            found = look_of(self._local / name)
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
        try:
            return self._copy_last(ended_well)
        except (OSError, StoreError) as error:
            return self._told(f"{self._called}s could not be copied to {self._store}: {error}")
        finally:
            self._store.close()

    def _copy_last(self, ended_well: bool) -> str:
        if not self._local.is_dir():
            return ""  # the script has removed it: nothing tells that files were deleted
        now = files_below(self._local)
        kept = set() if ended_well else {each.key for each in self._store.objects()}
        self._seen.update({name: look for name, look in now.items() if name not in kept})
        wanted = [name for name, look in now.items() if self._seen.get(name) == look]
        if ended_well:
            self._missing = {name for name in self._copied if name not in now}
        problem = self.copy()
        for name in wanted:
            if problem or self._copied.get(name) == now[name]:
                continue
            if look_of(self._local / name) is not None:
                problem = self._told(
                    f"{self._called} {name} could not be copied to {self._store}: it is written"
                    " to, though the script has ended; expected a file that rests. Have the script"
                    " wait for what it has started."
                )
        return problem

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            with contextlib.suppress(Exception):  # or nothing would be copied any more
                self.copy()

    def copy(self) -> str:
        """Copies what is new and has not changed since the last look; what fails is told once.

        Returns: what could not be copied; empty if all was.
        """
        try:
            now = files_below(self._local)
        except FileNotFoundError:
            return ""  # it is gone, or a part of it: nothing tells that files were deleted
        except OSError as error:
            return self._told(f"{self._called}s could not be copied to {self._store}: {error}")
        missing = {name for name in self._copied if name not in now}
        due, self._missing = missing & self._missing, missing
        obstacles = in_the_way(due, now) if due else set()
        problem = self._delete(obstacles)
        is_held = False
        for name, look in now.items():
            if self._copied.get(name) == look or self._seen.get(name) != look:
                continue
            try:
                _flush(self._local / name)
                self._store.put(self._local / name, name, look)
            except (FileNotFoundError, Changed, Abandoned):
                is_held = True
                continue  # the script has deleted it, or goes on with it: again next time
            except (OSError, StoreError) as error:
                problem = f"{self._called} {name} could not be copied to {self._store}: {error}"
                # Of a disk that is full, what is deleted makes room.
                is_held |= getattr(error, "errno", 0) not in (errno.ENOSPC, errno.EDQUOT)
                if getattr(error, "is_passing", False):
                    break  # the store does not answer, and was waited for
                continue
            self._copied[name] = look
        self._seen = now
        if not is_held:  # else the store might lose the last one of what the script replaces
            problem = self._delete(due - obstacles) or problem
        return self._told(problem)

    def _told(self, problem: str) -> str:
        if problem and problem != self._last_problem:
            self._say(problem)
        self._last_problem = problem
        return problem

    def _delete(self, names: Iterable[str]) -> str:
        """In the store, if that is wanted. Returns: what is wrong, if anything."""
        for name in sorted(names):
            if self._deletes:
                try:
                    self._store.delete(name)
                except (OSError, StoreError) as error:
                    what = f"{self._called} {name}"
                    return f"{what} could not be deleted from {self._store}: {error}"
            del self._copied[name]
        return ""


def _flush(path: Path) -> None:
    """Has a file on its disk: what is written to it through memory later changes its time then.

    Raises:
        OSError: it cannot be written there.
    """
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno != errno.EINVAL:  # there is no disk
                raise
