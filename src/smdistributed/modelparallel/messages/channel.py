# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What moves messages between the ranks of a pipeline: the engine's native communicator does.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Channel", "Incoming", "Source"]


class Incoming(Protocol):
    """A message as a channel delivers it: also a writable buffer, the segments."""

    @property
    def source(self) -> int:
        """The rank it comes from."""

    @property
    def header(self) -> bytes:
        """What was sent beside the segments."""

    @property
    def nbytes(self) -> int:
        """Of the segments, with what is between them."""


class Source(Protocol):
    """Where messages come from."""

    def next_message(self, timeout_s: float) -> Incoming | None:
        """The oldest message that has come, or None if none came in that time."""


class Channel(Source, Protocol):
    """Moves messages between the ranks of a pipeline, in order for each pair of them."""

    def post_message(self, dest: int, header: bytes, segments: Sequence[tuple[int, int]]) -> None:
        """Copies what is sent (addresses and bytes) before it returns, and waits for nobody."""

    def abort(self, reason: str) -> None:
        """Ends the channel on every rank."""
