# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files that a courier tells of, kept in stores on the machine of the job's process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from smdistributed.launch.courier.files import Arriving, below
from smdistributed.launch.courier.messages import Dropped, Kept, ProtocolError

__all__ = ["STORES", "Keeping"]

STORES = ("checkpoints", "intermediate")
"""What they are called: fields of a plan, and folders below `store` of a courier."""


class Keeping:
    """Of one host.

    Args:
        stores: by what messages call them, their folders.
        name: of the host in its job: files that are not whole yet have it in their names.

    Attributes:
        problems: why files could not be kept.
    """

    def __init__(self, stores: Mapping[str, Path], name: str) -> None:
        self._stores = stores
        self._arriving = Arriving(name)
        self.problems: dict[Path, str] = {}
        for store in stores.values():
            self._arriving.sweep(store)  # of a process that was killed

    def take(self, message: Kept | Dropped) -> str:
        """Keeps a piece of a file, or removes one.

        Returns: what is wrong, if that is new; empty: nothing. Training goes on meanwhile.

        Raises:
            ProtocolError: it is no file of a store.
        """
        root = self._stores.get(message.store)
        if root is None:
            raise ProtocolError(f"{message.store!r:.100} is no store of this job.")
        path = below(root, message.path)
        try:
            if isinstance(message, Dropped):
                _remove(path, root)
            elif self._arriving.add(
                path,
                message.offset,
                message.body,
                is_last=message.is_last,
                modified_ns=message.modified_ns,
                mode=message.mode,
            ):
                self.problems.pop(path, None)
        except OSError as error:
            is_new = path not in self.problems
            self.problems[path] = f"{message.path} could not be copied to {root}: {error}"
            return self.problems[path] if is_new else ""
        return ""

    def close(self) -> None:
        """Nothing is left of a file that is not whole."""
        self._arriving.drop()


def _remove(path: Path, root: Path) -> None:
    """A file, and the folders that are empty without it."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        while path.parent != root:
            path = path.parent
            path.rmdir()
