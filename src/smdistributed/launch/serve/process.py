# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each process of an endpoint does with its directory, wherever the model is served."""

from __future__ import annotations

import contextlib
import datetime as dt
import signal
from types import FrameType

from smdistributed.launch.home import Home
from smdistributed.launch.serve.endpoints import EndpointDirectory

__all__ = ["EndpointProcess"]


class EndpointProcess:
    """Of one directory.

    Args:
        directory: of the endpoint.
    """

    def __init__(self, directory: EndpointDirectory) -> None:
        self._directory = directory
        self._record = directory.read()
        self._home = Home(directory.path.parent.parent)
        self._signal = 0

    def _note_signals(self) -> None:
        """From now on signals that end a process are noted."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _is_over(self) -> bool:
        return bool(self._signal) or self._directory.is_to_stop()

    def _fail(self, reason: str) -> None:
        self._say(f"the endpoint has failed: {reason}")
        self._record = self._record.failed(reason)
        with contextlib.suppress(OSError):  # whoever looks finds the lock released
            self._directory.write(self._record)

    def _say(self, text: str) -> None:
        time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._append(f"{time} {text}\n")

    def _append(self, text: str) -> None:
        with (
            contextlib.suppress(OSError),
            self._directory.log.open("a", encoding="utf-8", errors="replace") as file,
        ):
            file.write(text)
