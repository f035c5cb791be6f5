# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What travels between the ranks and the rendezvous: handshake and frames.

Handshake; no byte after it is interpreted before both sides have proved to know the token:

    [1] client -> server   magic (8), has token (1), rank (4), world size (4), client nonce (32)
    [2] server -> client   magic (8), has token (1), server nonce (32)
    [3] client -> server   proof (32)
    [4] server -> client   is accepted (1), proof (32; zeros if not accepted)

A proof is HMAC-SHA256 under the token (the empty key without one) over the role, the whole of [1]
and [2] and, inside TLS, the fingerprints of both certificates (tls.py). Roles keep a proof from
being sent back to its maker. The client proves first, so that nobody who merely connects is handed
anything made with the token. The rank in [1] is a claim until [3]; it is there to tell people which
rank was refused.

All of it takes place inside TLS 1.3 if the ranks use that. Whoever has TLS and meets somebody who
has not says so in the clear: a server answers eight bytes, NEEDS_TLS or MAGIC, and closes.

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
    "NEEDS_TLS",
    "NONCE_BYTES",
    "SERVER_HELLO",
    "SERVER_VERDICT",
    "Kind",
    "client_proof",
    "configure",
    "join_values",
    "pack_frame",
    "result_bound_bytes",
    "server_proof",
    "split_values",
]

MAGIC = b"SMDRDZV2"
NEEDS_TLS = b"SMDRDTLS"
NONCE_BYTES = 32

CLIENT_HELLO = struct.Struct("!8s?II32s")
SERVER_HELLO = struct.Struct("!8s?32s")
CLIENT_PROOF = struct.Struct("!32s")
SERVER_VERDICT = struct.Struct("!?32s")
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
    NOTICE = 6  # server: a text as value, for the log of the rank; nothing is wrong yet


def client_proof(token: bytes, hello: bytes, answer: bytes, binding: bytes = b"") -> bytes:
    """The proof in [3].

    Args:
        token: the job's secret, empty without one.
        hello: [1].
        answer: [2].
        binding: `RendezvousTls.binding`; empty in the clear.
    """
    return hmac.digest(token, b"smddp client" + hello + answer + binding, hashlib.sha256)


def server_proof(token: bytes, hello: bytes, answer: bytes, binding: bytes = b"") -> bytes:
    """The proof in [4]; arguments as for `client_proof`."""
    return hmac.digest(token, b"smddp server" + hello + answer + binding, hashlib.sha256)


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
