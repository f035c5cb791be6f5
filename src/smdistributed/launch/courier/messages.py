# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a courier and the job's process say to each other.

A message is a head in JSON, with its kind and its fields, and a body of bytes:

    SMD1, the lengths of both as 4 bytes each, the head, the body

What comes in is checked to the last field before anybody sees it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import typing
from collections.abc import Iterator
from typing import Any, ClassVar

from smdistributed._common.errors import SmdistributedError
from smdistributed._common.version import __version__

__all__ = [
    "MARK",
    "MOST_BODY",
    "AgentEnded",
    "Bring",
    "Brought",
    "Close",
    "Decoder",
    "Dropped",
    "EndRanks",
    "Grown",
    "Hello",
    "Kept",
    "Make",
    "Message",
    "Place",
    "ProtocolError",
    "Start",
    "StillHere",
    "Told",
    "encoded",
]

MARK = b"\n-- smdistributed courier --\n"
"""Comes before the first message: what a login shell prints may come before that."""

MOST_BODY = 1 << 20
_MOST_HEAD = 1 << 16
_MOST_BEFORE = 1 << 16
_MAGIC = b"SMD1"
_LENGTHS = struct.Struct(">4sII")


class ProtocolError(SmdistributedError):
    """What came in is no message."""


@dataclasses.dataclass(frozen=True)
class Message:
    """Of one kind, which is its class."""

    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls


# --- to the host ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place(Message):
    """A piece of a file that the host needs.

    Attributes:
        path: below the courier's folder.
        offset: of the piece in the file.
        mode: permissions of the file.
        modified_ns: when it was last changed, in nanoseconds since 1970.
        is_last: the file is whole with it.
        body: of the piece.
    """

    path: str
    offset: int
    mode: int
    modified_ns: int
    is_last: bool
    body: bytes = b""


@dataclasses.dataclass(frozen=True)
class Make(Message):
    """A folder that the host needs.

    Attributes:
        path: below the courier's folder.
        mode: permissions of the folder.
    """

    path: str
    mode: int


@dataclasses.dataclass(frozen=True)
class Start(Message):
    """The agent is to begin: all that it needs was placed, its plan as `plan.json`.

    Attributes:
        host: such as `algo-1`.
    """

    host: str


@dataclasses.dataclass(frozen=True)
class EndRanks(Message):
    """As `agent.plan.End`."""

    why: str
    grace_s: float


@dataclasses.dataclass(frozen=True)
class Bring(Message):
    """The job has ended: these are wanted of what lies at `/opt/ml`.

    Attributes:
        names: of folders there, such as `model`.
    """

    names: list[str]


@dataclasses.dataclass(frozen=True)
class Close(Message):
    """Nothing is wanted any more."""


# --- from the host --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Hello(Message):
    """What a courier says first.

    Attributes:
        version: of this package.
        name: of the machine.
        address: at which other machines reach it, as far as it knows.
        interface: of the network, which has that address; empty: none has.
        folder: of the courier, an absolute path; it goes with the courier.
        num_gpus: that it sees.
        ports: two that are free.
        opt_ml: how the host's folder comes to `/opt/ml`, in words.
        time_s: of its clock, in seconds since 1970.
    """

    version: str
    name: str
    address: str
    interface: str
    folder: str
    num_gpus: int
    ports: list[int]
    opt_ml: str
    time_s: float


@dataclasses.dataclass(frozen=True)
class StillHere(Message):
    """Both ends say so each second.

    Attributes:
        clock_s: of the sender, monotonic.
        beat: the agent gave a sign of life since the last message, and its ranks run.
        has_ranks: ranks run.
    """

    clock_s: float
    beat: bool
    has_ranks: bool


@dataclasses.dataclass(frozen=True)
class Grown(Message):
    """What was added to a file of the host's folder, such as its log.

    Attributes:
        path: below the courier's folder.
        offset: bytes that it had before.
    """

    path: str
    offset: int
    body: bytes = b""


@dataclasses.dataclass(frozen=True)
class Told(Message):
    """The agent's report, as it is now. `body` is that of the file."""

    body: bytes = b""


@dataclasses.dataclass(frozen=True)
class Kept(Message):
    """A piece of a file that is to be kept in a store.

    Attributes:
        store: `checkpoints` or `intermediate`.
        path: below the store.
        offset, mode, modified_ns, is_last, body: as of `Place`.
    """

    store: str
    path: str
    offset: int
    mode: int
    modified_ns: int
    is_last: bool
    body: bytes = b""


@dataclasses.dataclass(frozen=True)
class Dropped(Message):
    """A file is to be removed from a store. Fields are as of `Kept`."""

    store: str
    path: str


@dataclasses.dataclass(frozen=True)
class AgentEnded(Message):
    """The agent has ended, and all that it has written was told.

    Attributes:
        status: of its process; -n: signal n ended it.
    """

    status: int


@dataclasses.dataclass(frozen=True)
class Brought(Message):
    """A piece of an archive of what was asked for by `Bring`.

    Attributes:
        name: of the folder.
        is_last: of the folder; without a body if there was nothing.
        problem: why there is no more of it; empty: there is.
    """

    name: str
    is_last: bool
    problem: str
    body: bytes = b""


# --- how it is written ----------------------------------------------------------------------------


def encoded(message: Message) -> bytes:
    """A message as bytes."""
    fields = {each.name: getattr(message, each.name) for each in dataclasses.fields(message)}
    body: bytes = fields.pop("body", b"")
    head = json.dumps({"kind": type(message).__name__, **fields}).encode()
    if len(head) > _MOST_HEAD or len(body) > MOST_BODY:
        raise ProtocolError(
            f"a message {type(message).__name__} has {len(head):,} bytes of head and"
            f" {len(body):,} of body; expected up to {_MOST_HEAD:,} and {MOST_BODY:,}."
        )
    return _LENGTHS.pack(_MAGIC, len(head), len(body)) + head + body


class Decoder:
    """Finds the messages in what comes in.

    Args:
        has_mark: what comes before `MARK` is left out.

    Attributes:
        before: what came before the mark, for people.
    """

    def __init__(self, *, has_mark: bool = False) -> None:
        self._is_waiting = has_mark
        self._content = bytearray()
        self.before = b""

    def feed(self, content: bytes) -> Iterator[Message]:
        """Takes what has come in. Yields: the messages that are whole now.

        Raises:
            ProtocolError: it is no message; nothing can be said of what follows.
        """
        self._content += content
        if self._is_waiting and not self._find_mark():
            return
        while len(self._content) >= _LENGTHS.size:
            magic, of_head, of_body = _LENGTHS.unpack_from(self._content)
            if magic != _MAGIC or of_head > _MOST_HEAD or of_body > MOST_BODY:
                raise ProtocolError(f"{bytes(self._content[:32])!r} begins no message.")
            size = _LENGTHS.size + of_head + of_body
            if len(self._content) < size:
                return
            head = bytes(self._content[_LENGTHS.size : _LENGTHS.size + of_head])
            body = bytes(self._content[_LENGTHS.size + of_head : size])
            del self._content[:size]
            yield _message_of(head, body)

    def _find_mark(self) -> bool:
        found = self._content.find(MARK)
        if found < 0:
            if len(self._content) > _MOST_BEFORE:
                self.before = bytes(self._content[:_MOST_BEFORE])
                raise ProtocolError(
                    f"{_MOST_BEFORE:,} bytes came, and no courier has begun among them."
                )
            self.before = bytes(self._content)
            return False
        self.before = bytes(self._content[:found])
        del self._content[: found + len(MARK)]
        self._is_waiting = False
        return True


def _message_of(head: bytes, body: bytes) -> Message:
    try:
        fields = json.loads(head)
    except (ValueError, RecursionError):
        raise ProtocolError(f"a head is no JSON: {head[:100]!r}.") from None
    called = fields.pop("kind", None) if isinstance(fields, dict) else None
    kind = Message.kinds.get(called) if isinstance(called, str) else None
    if kind is None:
        raise ProtocolError(f"a message is of no known kind: {head[:100]!r}.")
    if kind is Hello and fields.get("version") != __version__:  # it may have other fields
        raise ProtocolError(
            f"version {fields.get('version')!r:.50} of smdistributed-open is there, and"
            f" {__version__} here; expected the same on both. Install it there."
        )
    expected = _types_of(kind)
    has_body = expected.pop("body", None) is not None
    if fields.keys() != expected.keys() or (body and not has_body):
        raise ProtocolError(f"{kind.__name__} has other fields: {head[:100]!r}.")
    for name, value in fields.items():
        if not _is_of(value, expected[name]):
            raise ProtocolError(f"{name} of {kind.__name__} is {value!r:.100}.")
        if expected[name] is float:
            fields[name] = float(value)
    return kind(**fields, **({"body": body} if has_body else {}))


def _types_of(kind: type[Message]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _is_of(value: Any, kind: Any) -> bool:
    if kind is float:
        return (type(value) is float and math.isfinite(value)) or _is_of(value, int)
    if kind is int:
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    if typing.get_origin(kind) is list:
        (inner,) = typing.get_args(kind)
        return type(value) is list and all(_is_of(each, inner) for each in value)
    return type(value) is kind
