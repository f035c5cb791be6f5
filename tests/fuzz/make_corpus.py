# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Write the inputs that the fuzzers start from: what an honest peer sends, and near misses.

    python tests/fuzz/make_corpus.py

The layouts are those of native/transport/tcp/protocol.h and native/transport/transport.h; a fuzzer
that starts without a valid hello or header would spend its time on guessing one.
"""

import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

HEADER_BYTES = 64
GOODBYE = 255
HONEST, WITH_KEY, AS_OPENER = 0, 1, 2
WHOLE, ANNOUNCEMENT, CLEARANCE, PAYLOAD, RETURN = range(5)


def hello(
    rank: int = 3, world_size: int = 4, target: int = 1, version: int = 4, stream: int = 0
) -> bytes:
    """Return a hello of 64 bytes, with a nonce that counts."""
    fixed = struct.pack(
        "<8sIHHiiii",
        b"SMDHELLO",
        0x01020304,
        version,
        HEADER_BYTES,
        rank,
        world_size,
        target,
        stream,
    )
    return fixed + bytes(range(32))


def frame(
    length: int,
    payload: bytes = b"",
    tag: int = 0,
    channel: int = 0,
    kind: int = WHOLE,
    amount: int = 0,
) -> bytes:
    """Return a header that announces `length` bytes, and `payload`."""
    header = struct.pack("<QQ32xQBB6x", length, tag, amount, channel, kind)
    assert len(header) == HEADER_BYTES
    return header + payload


def ring(value: bytes) -> bytes:
    """Return an input for the ring of what `value` is for the parser: its end is in the middle."""
    posted, stream = value[:1], value[1:]
    pieces = [stream[i : i + 100] for i in range(0, len(stream), 100)]
    return posted + struct.pack(">H", 40) + b"".join(bytes([len(p)]) + p for p in pieces)


def inputs() -> dict[str, bytes]:
    """Return the inputs by path below the corpus."""
    handshakes = {
        "honest": bytes([WITH_KEY]) + hello() + bytes(32),
        "without_key": bytes([HONEST]) + hello() + bytes(32),
        "truncated": bytes([WITH_KEY]) + hello()[:63],
        "rank_beyond": bytes([WITH_KEY]) + hello(rank=4) + bytes(32),
        "own_rank": bytes([WITH_KEY]) + hello(rank=1) + bytes(32),
        "other_target": bytes([WITH_KEY]) + hello(target=2) + bytes(32),
        "other_size": bytes([WITH_KEY]) + hello(world_size=5) + bytes(32),
        "old_version": bytes([WITH_KEY]) + hello(version=2) + bytes(32),
        "second_stream": bytes([WITH_KEY]) + hello(stream=1) + bytes(32),
        "stream_beyond": bytes([WITH_KEY]) + hello(stream=16) + bytes(32),
        "garbage": bytes([HONEST]) + b"GET / HTTP/1.1\r\n" * 8,
        "opener": bytes([AS_OPENER]) + bytes(range(64)),
    }
    frames = {
        "empty": b"\x0f" + frame(0),
        "posted": b"\x0f" + frame(1, b"x", tag=1) + frame(8, b"12345678", channel=1),
        "unexpected": b"\x00" + frame(5, b"hello", tag=9) + frame(1, b"x", tag=1),
        "other_size": b"\x0f" + frame(300, bytes(300), tag=1),
        "large": b"\x00" + frame(300, bytes(range(256)) + bytes(44), tag=1, channel=1),
        "message": b"\x00" + frame(9, b"body head", tag=4, channel=3) + frame(0, channel=3),
        "message_of_no_memory": b"\x00" + frame(2**40, channel=3),
        "message_truncated": b"\x00" + frame(100, b"half", tag=2, channel=3),
        "control": b"\x00" + frame(4, b"dead", tag=2, channel=2),
        "control_too_long": b"\x00" + frame(2**21, b"dead", channel=2),
        "announced": b"\x0f"
        + frame(0, tag=1, kind=ANNOUNCEMENT, amount=8)
        + frame(8, b"12345678", tag=1, kind=PAYLOAD),
        "announced_message": b"\x00"
        + frame(0, channel=3, kind=ANNOUNCEMENT, amount=9)
        + frame(9, b"body head", tag=4, channel=3, kind=PAYLOAD),
        "cleared": b"\x00" + frame(0, tag=1, kind=CLEARANCE) * 2,
        "returned": b"\x00" + frame(0, kind=RETURN, amount=2**63),
        "not_cleared": b"\x00" + frame(8, b"12345678", tag=1, kind=PAYLOAD),
        "goodbye": b"\x00" + frame(0, channel=GOODBYE),
        "after_goodbye": b"\x00" + frame(0, channel=GOODBYE) + frame(0),
        "too_long": b"\x00" + frame(2**42 + 1),
        "no_memory": b"\x00" + frame(2**40),
        "unknown_channel": b"\x00" + frame(0, channel=77),
        "truncated": b"\x01" + frame(100, b"half"),
    }
    rings = {name: ring(value) for name, value in frames.items()}
    rings["spoilt_written"] = ring(frames["posted"]) + b"\xff" + struct.pack("<Q", 2**17)
    rings["spoilt_read"] = ring(frames["truncated"]) + b"\xfe" + struct.pack("<q", -1)
    return {
        **{f"handshake/{name}": value for name, value in handshakes.items()},
        **{f"frames/{name}": value for name, value in frames.items()},
        **{f"ring/{name}": value for name, value in rings.items()},
    }


if __name__ == "__main__":
    for path, value in inputs().items():
        (CORPUS / path).parent.mkdir(parents=True, exist_ok=True)
        (CORPUS / path).write_bytes(value)
