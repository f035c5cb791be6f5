# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of the other end, and for how long none has come. Both ends listen so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from smdistributed.launch.courier.messages import Decoder, Message

__all__ = ["MOST_SILENT_S", "STILL_S", "Listener"]

STILL_S = 1.0
"""Each end says so often that it is there."""

MOST_SILENT_S = 15.0
"""An end that says nothing for so long is taken for dead."""


class Listener:
    """On a thread of its own. Others may ask how long it has waited.

    Args:
        read: waits for bytes, and returns some; none: nothing comes any more.
        decoder: finds the messages in them.
    """

    def __init__(self, read: Callable[[], bytes], decoder: Decoder) -> None:
        self._read = read
        self._decoder = decoder
        self._waits_since: float | None = time.monotonic()  # None: it works on what has come

    def messages(self) -> Iterator[Message]:
        """One after the other, until nothing comes any more.

        Raises:
            ProtocolError: what has come is no message.
        """
        while True:
            self._waits_since = time.monotonic()
            content = self._read()
            if not content:
                return
            self._waits_since = None  # a slow disk of ours is no silence of theirs
            yield from self._decoder.feed(content)

    def silent_s(self) -> float:
        """For how many seconds nothing has come, though this end was ready for it."""
        since = self._waits_since
        return 0.0 if since is None else time.monotonic() - since
