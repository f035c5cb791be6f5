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
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from smdistributed.launch.data.stores.folder import files_below
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
            with contextlib.suppress(OSError):
                now = files_below(self._local)
                kept = set() if ended_well else {each.key for each in self._store.objects()}
                self._seen.update({name: look for name, look in now.items() if name not in kept})
                if ended_well:
                    self._missing = {name for name in self._copied if name not in now}
            return self.copy()
        except StoreError as error:
            return f"{self._called}s could not be copied to {self._store}: {error}"
        finally:
            self._store.close()

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
        except OSError:
            return ""  # it is gone, or cannot be read: nothing tells that files were deleted
        problem = self._delete_missing(now)
        for name, look in now.items():
            if self._copied.get(name) == look or self._seen.get(name) != look:
                continue
            try:
                self._store.put(self._local / name, name, look)
            except (FileNotFoundError, Changed, Abandoned):
                continue  # the script has deleted it, or goes on with it: again next time
            except (OSError, StoreError) as error:
                problem = f"{self._called} {name} could not be copied to {self._store}: {error}"
                if getattr(error, "is_passing", False):
                    break  # the store does not answer, and was waited for
                continue
            self._copied[name] = look
        self._seen = now
        if problem and problem != self._last_problem:
            self._say(problem)
        self._last_problem = problem
        return problem

    def _delete_missing(self, now: dict[str, Look]) -> str:
        """What two looks have missed is deleted. Returns: what is wrong, if anything."""
        missing = {name for name in self._copied if name not in now}
        for name in missing & self._missing:
            if self._deletes:
                try:
                    self._store.delete(name)
                except StoreError as error:
                    self._missing = missing
                    what = f"{self._called} {name}"
                    return f"{what} could not be deleted from {self._store}: {error}"
            del self._copied[name]
        self._missing = missing
        return ""
