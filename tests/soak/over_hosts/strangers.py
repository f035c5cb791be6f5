# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Connections that have no business with a rank: what scanners, old jobs and attackers send.

python -m tests.soak.over_hosts.strangers ADDRESS SECONDS SEED PORT...
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
import time
from collections.abc import Callable

_HELD = 100  # connections that stay open at a time, more than a rank lets wait


def _hello(chance: random.Random) -> bytes:
    """Right in all it says (native/transport/tcp/protocol.h), and worth nothing without the key."""
    return struct.pack(
        "<8sIHHiii4x", b"SMDHELLO", 0x01020304, 3, 56, chance.randrange(4), 4, chance.randrange(4)
    ) + chance.randbytes(32)


_GREETINGS: tuple[Callable[[random.Random], bytes], ...] = (
    lambda chance: b"",
    lambda chance: chance.randbytes(chance.randrange(1, 4096)),
    lambda chance: b"GET / HTTP/1.1\r\nHost: rank\r\n\r\n",
    lambda chance: b"\x16\x03\x01" + chance.randbytes(300),  # as TLS begins
    _hello,
    lambda chance: _hello(chance)[: chance.randrange(1, 56)],
    lambda chance: _hello(chance) + chance.randbytes(32),  # with a guessed proof
    lambda chance: _hello(chance) + chance.randbytes(32 + 56),  # and a frame
)


def knock(address: str, ports: list[int], seconds: float, chance: random.Random) -> int:
    """Connects over and over, each time with another greeting; how many connections were made."""
    end = time.monotonic() + seconds
    held: list[socket.socket] = []
    made = 0
    while ports and time.monotonic() < end:
        # Ports close and hosts fail while others knock.
        with contextlib.suppress(OSError):
            connection = socket.create_connection((address, chance.choice(ports)), timeout=1.0)
            made += 1
            with contextlib.suppress(OSError):
                connection.sendall(chance.choice(_GREETINGS)(chance))
            if chance.random() < 0.5:
                held.append(connection)
            else:
                if chance.random() < 0.5:  # with a reset
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.close()
        if len(held) > _HELD:
            held.pop(chance.randrange(len(held))).close()
    for connection in held:
        connection.close()
    return made


if __name__ == "__main__":
    knock(
        sys.argv[1], [int(n) for n in sys.argv[4:]], float(sys.argv[2]), random.Random(sys.argv[3])
    )
