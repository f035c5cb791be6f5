# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What travels between the ranks and the rendezvous: handshake and frames.

Handshake; no byte after it is interpreted before both sides have proved to know the token:

    [1] client -> server   magic (8), has token (1), client nonce (32)
    [2] server -> client   magic (8), has token (1), server nonce (32), proof (32)
    [3] client -> server   rank (4), world size (4), proof (32)

A proof is HMAC-SHA256 under the token (the empty key without one) over the role, both nonces and,
in [3], the two numbers. Roles keep a proof from being sent back to its maker.

After that, frames in both directions:

    kind (1)  key length (2)  value length (8)  key (UTF-8)  value

Every length is checked against a bound before memory is taken; nothing is unpickled.
"""

import hashlib
import hmac
import socket
import struct
from collections.abc import Sequence

__all__ = [
    "CLIENT_HELLO",
    "CLIENT_PROOF",
    "FRAME_HEADER",
    "MAGIC",
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "NONCE_BYTES",
    "SERVER_HELLO",
    "Kind",
    "client_proof",
    "configure",
    "join_values",
    "pack_frame",
    "result_bound_bytes",
    "server_proof",
    "split_values",
]

MAGIC = b"SMDRDZV1"
NONCE_BYTES = 32

CLIENT_HELLO = struct.Struct("!8s?32s")
SERVER_HELLO = struct.Struct("!8s?32s32s")
CLIENT_PROOF = struct.Struct("!II32s")
FRAME_HEADER = struct.Struct("!BHQ")

MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 16 * 1024 * 1024

_VALUE_LENGTH = struct.Struct("!Q")


class Kind:
    """What a frame is; the first byte of its header."""

    WELCOME = 1  # server: you are a member
    EXCHANGE = 2  # client: key, my value
    RESULT = 3  # server: key, every rank's value
    FAILURE = 4  # server: error kind as key, text as value; final
    GOODBYE = 5  # client: I leave on purpose


def server_proof(token: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """The proof in [2]."""
    return hmac.digest(token, b"server" + client_nonce + server_nonce, hashlib.sha256)


def client_proof(
    token: bytes, client_nonce: bytes, server_nonce: bytes, rank: int, world_size: int
) -> bytes:
    """The proof in [3]."""
    numbers = struct.pack("!II", rank, world_size)
    return hmac.digest(token, b"client" + client_nonce + server_nonce + numbers, hashlib.sha256)


def pack_frame(kind: int, key: str = "", value: bytes = b"") -> bytes:
    """Returns one frame, ready to be sent."""
    key_bytes = key.encode()
    return FRAME_HEADER.pack(kind, len(key_bytes), len(value)) + key_bytes + value


def result_bound_bytes(world_size: int) -> int:
    """Returns the largest value that a RESULT frame may carry."""
    return world_size * (_VALUE_LENGTH.size + MAX_VALUE_BYTES)


def join_values(values: Sequence[bytes]) -> bytes:
    """Packs every rank's value, in rank order, into the value of a RESULT frame."""
    return b"".join(part for value in values for part in (_VALUE_LENGTH.pack(len(value)), value))


def split_values(joined: bytes, world_size: int) -> list[bytes]:
    """Undoes `join_values`.

    Raises:
        ValueError: the bytes are not `world_size` values.
    """
    values: list[bytes] = []
    offset = 0
    while offset < len(joined):
        start = offset + _VALUE_LENGTH.size
        if start > len(joined):
            raise ValueError("a length is cut off")
        (length,) = _VALUE_LENGTH.unpack_from(joined, offset)
        offset = start + length
        if offset > len(joined):
            raise ValueError("a value is cut off")
        values.append(joined[start:offset])
    if len(values) != world_size:
        raise ValueError(f"{len(values)} values for {world_size} ranks")
    return values


def configure(connection: socket.socket) -> None:
    """Sends small frames at once, and notices within half a minute a host that vanished."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
