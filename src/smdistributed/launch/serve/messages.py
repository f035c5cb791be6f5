# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between the process of an endpoint and its workers.

A frame is the length of its head, the length of its body, the head in JSON, and the body. An
endpoint sends calls. A worker sends first whether it has loaded its model, and then an answer for
each call.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
from typing import IO, Any

__all__ = ["Answer", "Call", "Loaded", "frame", "read_frame", "read_frame_from"]

_LENGTHS = struct.Struct("<IQ")


@dataclasses.dataclass(frozen=True)
class Call:
    """A request, as far as a model is concerned.

    Attributes:
        content_type, accept: of the header's lines; empty if they are not there.
        headers: all lines, their names in lower case.
        body: as it came.
    """

    content_type: str
    accept: str
    headers: dict[str, str]
    body: bytes = b""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is sent back.

    Attributes:
        status: of HTTP.
        content_type: of the body.
        body: as it is sent.
    """

    status: int
    content_type: str
    body: bytes = b""

    @classmethod
    def problem(cls, status: int, text: str) -> Answer:
        """That something went wrong, in words."""
        return cls(status, "text/plain; charset=utf-8", text.encode("utf-8", "backslashreplace"))


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A worker has loaded its model, or could not.

    Attributes:
        problem: why it could not; empty if it could.
    """

    problem: str
    body: bytes = b""


def frame(message: Call | Answer | Loaded) -> bytes:
    """A message as it is sent."""
    head: dict[str, Any] = dataclasses.asdict(dataclasses.replace(message, body=b""))
    del head["body"]
    text = json.dumps(head).encode()
    return b"".join((_LENGTHS.pack(len(text), len(message.body)), text, message.body))


def read_frame_from(file: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The fields of the next message, and its body; None if there are no more."""
    lengths = file.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head_length, body_length = _LENGTHS.unpack(lengths)
    head, body = file.read(head_length), file.read(body_length)
    if len(head) < head_length or len(body) < body_length:
        return None
    return json.loads(head), body


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """The fields of the next message, and its body.

    Raises:
        asyncio.IncompleteReadError: there are no more.
        ConnectionError: what has come is no message.
    """
    head_length, body_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    head = await reader.readexactly(head_length)
    try:
        fields = json.loads(head)
    except ValueError:
        raise ConnectionError("what has come is no message") from None
    return fields, await reader.readexactly(body_length)
