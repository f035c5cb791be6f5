# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages as lines of text, where a log is all that comes back.

They are numbered from 1: a log that is read again tells the same lines again, and one that was
rotated meanwhile has lost some.
"""

from __future__ import annotations

import base64
import binascii
import re

from smdistributed.launch.courier.messages import Decoder, Message, ProtocolError, encoded

__all__ = ["MOST_OF_LINE", "line_of", "message_of"]

MOST_OF_LINE = 24 << 10
"""Bytes of a message's body in a line: engines cut longer lines, or keep them slowly."""

_BEGIN = "SMD2:"
_LINE = re.compile(r"([1-9]\d{0,17}):(.*)", re.ASCII)


def line_of(message: Message, number: int) -> str:
    """A line, without its end."""
    return f"{_BEGIN}{number}:{base64.b64encode(encoded(message)).decode()}"


def message_of(line: str) -> tuple[int, Message] | None:
    """The number of a line, and its message; None if it has none.

    Raises:
        ProtocolError: it begins as if it had one.
    """
    if not line.startswith(_BEGIN):
        return None
    parts = _LINE.fullmatch(line[len(_BEGIN) :].rstrip("\r\n"))
    if parts is None:
        raise ProtocolError(f"a line is damaged: it has no number ({line:.40}).")
    try:
        content = base64.b64decode(parts[2], validate=True)
    except binascii.Error as error:
        raise ProtocolError(f"a line is damaged: {error}.") from None
    found = list(Decoder().feed(content))
    if len(found) != 1:
        raise ProtocolError(f"a line of {len(content):,} bytes has {len(found)} messages.")
    return int(parts[1]), found[0]
