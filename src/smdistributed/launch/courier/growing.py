# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Files that a courier tells the growth of, kept in the job's directory."""

from __future__ import annotations

import re

from smdistributed.launch.agent.plan import HostDirectory
from smdistributed.launch.courier.files import below
from smdistributed.launch.courier.messages import Grown, ProtocolError
from smdistributed.launch.jobs.files import end_line

__all__ = ["Growing"]

# No other file is written to.
_GROWING = re.compile(
    r"hosts/(?P<host>[^/]+)/(agent\.log|log|metrics\.jsonl|system_metrics\.jsonl)"
    r"|tensorboard/(?P<board>[^/]+)/events\.out\.tfevents\.[^/\n]+"
)


class Growing:
    """Of one host, for one attempt.

    Args:
        directory: of the host, in the job's directory.
        goes_on: an attempt before this one has begun the files. Of those the courier is sent the
            metrics, and goes on where they end; its other files are new.
    """

    def __init__(self, directory: HostDirectory, *, goes_on: bool) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}  # as the courier counts
        if not goes_on:
            return
        for path in (directory.log, directory.metrics, directory.system_metrics):
            end_line(path)
        if directory.metrics.is_file():
            known = directory.metrics.stat().st_size
            self._sizes[f"hosts/{directory.name}/{directory.metrics.name}"] = known

    def take(self, message: Grown) -> None:
        """Writes what has come to a file.

        Raises:
            ProtocolError: no such file of this host grows, or it does not grow there.
            OSError: it cannot be written.
        """
        found = _GROWING.fullmatch(message.path)
        if found is None or self._directory.name not in found.groupdict().values():
            raise ProtocolError(f"{message.path!r:.100} is no file that grows.")
        if message.offset != self._sizes.get(message.path, 0):
            raise ProtocolError(f"{message.path} grows at {message.offset}.")
        path = below(self._directory.path.parent.parent, message.path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(message.body)
        self._sizes[message.path] = message.offset + len(message.body)
