# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Somebody on a host who is no rank: records what passes, and speaks to ports that are not his.

    python strangers.py record eth0 FILE            until one handshake between ranks is in FILE
    python strangers.py replay FILE                 plays it back to the rank it was for
    python strangers.py KIND ADDRESS PORT RANK WORLD_SIZE      KIND: garbage, truncated, guess

Ends with status 0 if nobody took the stranger for a rank: no welcome came.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import random
import socket
import struct
import sys
from pathlib import Path

_WAIT_S = 120.0
_ETH_P_IP = 0x0800
# Sizes and order of what travels: native/transport/tcp/protocol.h.
_MAGIC = b"SMDHELLO"
_HELLO_BYTES, _CHALLENGE_BYTES, _PROOF_BYTES, _FRAME_HEADER_BYTES = 64, 32, 32, 64


def hello(rank: int, target: int, world_size: int) -> bytes:
    """One that is right in all it says."""
    return struct.pack(
        "<8sIHHiii4x", _MAGIC, 0x01020304, 4, _FRAME_HEADER_BYTES, rank, world_size, target
    ) + os.urandom(32)


def heard_after(connection: socket.socket, data: bytes) -> bytes:
    """All that comes until the other end closes the connection."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)
        while part := connection.recv(4096):
            heard += part
    return heard


def record(interface: str, path: Path) -> None:
    """Write the first 96 bytes that an opener sends on a connection, and for whom they were."""
    streams: dict[tuple[bytes, bytes], bytes] = {}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP)) as tap:
        tap.bind((interface, _ETH_P_IP))
        tap.settimeout(_WAIT_S)
        path.with_suffix(".ready").touch()
        while True:
            packet = tap.recv(1 << 17)[14:]
            if packet[9] != socket.IPPROTO_TCP:
                continue
            end = int.from_bytes(packet[2:4], "big")
            segment = packet[(packet[0] & 15) * 4 : end or len(packet)]
            payload = segment[(segment[12] >> 4) * 4 :]
            key = packet[12:20], segment[:4]
            if not payload or (key not in streams and not payload.startswith(_MAGIC)):
                continue
            streams[key] = streams.get(key, b"") + payload
            if len(streams[key]) >= _HELLO_BYTES + _PROOF_BYTES:
                found = {
                    "address": socket.inet_ntoa(packet[16:20]),
                    "port": int.from_bytes(segment[2:4], "big"),
                    "bytes": streams[key][: _HELLO_BYTES + _PROOF_BYTES].hex(),
                }
                part = path.with_suffix(".part")
                part.write_text(json.dumps(found))
                part.replace(path)
                return


def replay(path: Path) -> bytes:
    """What is heard after a handshake that was good once; the challenge comes to everybody."""
    found = json.loads(path.read_text())
    with socket.create_connection((found["address"], found["port"]), timeout=_WAIT_S) as connection:
        return heard_after(connection, bytes.fromhex(found["bytes"]) + bytes(_FRAME_HEADER_BYTES))


def speak(kind: str, address: str, port: int, rank: int, world_size: int) -> bytes:
    """What is heard beyond challenges, over several connections at once."""
    greeting = hello((rank + 1) % world_size, rank, world_size)
    rng = random.Random(port)
    tries = {
        "garbage": [b"\0", b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(4096), b"\xff" * 100_000],
        "truncated": [greeting[:20], greeting, greeting + rng.randbytes(10)],
        "guess": [greeting],
    }[kind]
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((address, port), timeout=_WAIT_S))
            for _ in tries
        ]
        for connection, data in zip(connections, tries, strict=True):
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if kind == "truncated":
                    connection.shutdown(socket.SHUT_WR)
        if kind == "guess":
            challenge = connections[0].recv(_CHALLENGE_BYTES, socket.MSG_WAITALL)
            text = b"smddp proof" + greeting + challenge
            guessed = hmac.digest(b"guess", text, hashlib.sha256)
            return heard_after(connections[0], guessed + bytes(_FRAME_HEADER_BYTES))
        beyond = 0 if kind == "garbage" else _CHALLENGE_BYTES
        return b"".join(heard_after(connection, b"")[beyond:] for connection in connections)


def main(words: list[str]) -> int:
    """Do what the command line says; the exit status."""
    if words[0] == "record":
        record(words[1], Path(words[2]))
        return 0
    if words[0] == "replay":
        heard = replay(Path(words[1]))[_CHALLENGE_BYTES:]
    else:
        heard = speak(words[0], words[1], *map(int, words[2:5]))
    if heard:
        print(f"a stranger was told {len(heard)} bytes: {heard[:64].hex()}", file=sys.stderr)
    return int(bool(heard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
