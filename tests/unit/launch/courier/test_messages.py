# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages come out as they went in, and nothing else comes out as a message."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed._common.version import __version__
from smdistributed.launch.courier.lines import line_of, message_of
from smdistributed.launch.courier.messages import (
    MARK,
    MOST_BODY,
    Decoder,
    Hello,
    Message,
    ProtocolError,
    StillHere,
    Told,
    encoded,
)

_TEXTS = st.text(max_size=20)
_VALUES = {
    str: _TEXTS,
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bytes: st.binary(max_size=100),
    list[str]: st.lists(_TEXTS, max_size=3),
    list[int]: st.lists(st.integers(0, 1 << 16), max_size=3),
}


def _any_message() -> st.SearchStrategy[Message]:
    def of(kind: type[Message]) -> st.SearchStrategy[Message]:
        hints = typing.get_type_hints(kind)
        fields = {each.name: _VALUES[hints[each.name]] for each in dataclasses.fields(kind)}
        if kind is Hello:
            fields["version"] = st.just(__version__)
        return st.builds(kind, **fields)

    return st.sampled_from(sorted(Message.kinds.values(), key=lambda kind: kind.__name__)).flatmap(
        of
    )


def _framed(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">4sII", b"SMD1", len(head), len(body)) + head + body


@given(st.lists(_any_message(), max_size=5), st.data())
def test_what_goes_in_comes_out_however_it_is_cut(messages, data) -> None:
    content = b"".join(map(encoded, messages))
    decoder = Decoder()
    found: list[Message] = []
    while content:
        size = data.draw(st.integers(1, len(content)))
        found += decoder.feed(content[:size])
        content = content[size:]
    assert found == messages


@given(_any_message(), st.integers(1, 10**17))
def test_as_lines(message, number: int) -> None:
    line = line_of(message, number)
    assert message_of(line + "\r\n") == (number, message)
    assert message_of("x" + line) is None
    with pytest.raises(ProtocolError):
        message_of(line[:-1])


@pytest.mark.parametrize(
    "line", ["SMD2:", "SMD2:0:", "SMD2:x:", "SMD2:1:!", "SMD2:1:", "SMD2:\u0661:"]
)
def test_damaged_lines(line: str) -> None:
    with pytest.raises(ProtocolError):
        message_of(line)


@given(st.binary(max_size=200))
def test_nonsense_is_no_message(content: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert not list(Decoder().feed(content))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)


@given(_any_message(), st.data())
def test_fields_of_other_types_are_refused(message, data) -> None:
    fields = {each.name: getattr(message, each.name) for each in dataclasses.fields(message)}
    fields.pop("body", None)
    head = {"kind": type(message).__name__, **fields}
    key = data.draw(st.sampled_from([*head, "more"]))
    value = data.draw(_JSON)
    content = _framed(json.dumps({**head, key: value}).encode())
    try:
        found = list(Decoder().feed(content))
    except ProtocolError:
        return
    (made,) = found
    hints = typing.get_type_hints(type(made))
    for each in dataclasses.fields(made):
        kind = typing.get_origin(hints[each.name]) or hints[each.name]
        assert type(getattr(made, each.name)) is kind


@pytest.mark.parametrize(
    "head",
    [
        b'{"kind": []}',
        b'{"kind": {}}',
        b"[]",
        b"\xff",
        b'{"kind": "Message"}',
        b'{"kind": "StillHere", "clock_s": NaN, "beat": true, "has_ranks": true}',
        b'{"kind": "StillHere", "clock_s": 1e999, "beat": true, "has_ranks": true}',
        b'{"kind": "StillHere", "clock_s": 1%s, "beat": true, "has_ranks": true}' % (b"0" * 400),
        b'{"kind": "StillHere", "clock_s": 1, "beat": 1, "has_ranks": true}',
        b"[" * 10_000,
    ],
)
def test_heads_that_are_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(_framed(head)))


def test_lengths_are_bounded_before_anything_is_kept() -> None:
    for lengths in ((1 << 17, 0), (2, MOST_BODY + 1), (1 << 31, 1 << 31)):
        with pytest.raises(ProtocolError, match="begins no message"):
            list(Decoder().feed(struct.pack(">4sII", b"SMD1", *lengths)))
    with pytest.raises(ProtocolError, match="expected up to"):
        encoded(Told(bytes(MOST_BODY + 1)))


def test_what_comes_before_the_mark_is_left_out() -> None:
    message = StillHere(1.0, True, False)
    decoder = Decoder(has_mark=True)
    content = b"Welcome!\nSMD1 \xff" + MARK + encoded(message)
    assert [each for byte in content for each in decoder.feed(bytes([byte]))] == [message]
    assert decoder.before == b"Welcome!\nSMD1 \xff"
    decoder = Decoder(has_mark=True)
    with pytest.raises(ProtocolError, match="no courier has begun"):
        list(decoder.feed(bytes(100_000)))
