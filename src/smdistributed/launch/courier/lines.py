# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages as lines of text, where a log is all that comes back."""

from __future__ import annotations

import base64
import binascii

from smdistributed.launch.courier.messages import Decoder, Message, ProtocolError, encoded

__all__ = ["MOST_OF_LINE", "line_of", "message_of"]

MOST_OF_LINE = 24 << 10
"""Bytes of a message's body in a line: engines cut longer lines, or keep them slowly."""

_BEGIN = "SMD1:"


def line_of(message: Message) -> str:
    """A line, without its end."""
    return _BEGIN + base64.b64encode(encoded(message)).decode()


def message_of(line: str) -> Message | None:
    """The message of a line; None if it has none.

    Raises:
        ProtocolError: it begins as if it had one.
    """
    if not line.startswith(_BEGIN):
        return None
    try:
        content = base64.b64decode(line[len(_BEGIN) :].rstrip("\r\n"), validate=True)
    except binascii.Error as error:
        raise ProtocolError(f"a line is damaged: {error}.") from None
    found = list(Decoder().feed(content))
    if len(found) != 1:
        raise ProtocolError(f"a line of {len(content):,} bytes has {len(found)} messages.")
    return found[0]
