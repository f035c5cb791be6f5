# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What people without the job's token may do to a job's ports, over real sockets.

No pytest here: ranks import it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Sequence

from machine_speed import scaled

ADDR = "127.0.0.1"
PATIENCE_S = scaled(30.0)


class Wiretap:
    """Passes connections on to a port of this host, and keeps what their openers have sent."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((ADDR, 0))
        self.port: int = self._listener.getsockname()[1]
        self._recorded: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def recorded(self) -> list[bytes]:
        """By connection, in the order in which they came."""
        return [bytes(each) for each in self._recorded]

    def close(self) -> None:
        """Stop listening; connections live on as long as their ends do."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((ADDR, self._target_port))
                except ConnectionRefusedError:  # nobody listens there yet: the opener tries again
                    near.close()
                    continue
                record = bytearray()
                self._recorded.append(record)
                for source, sink, kept in ((near, far, record), (far, near, None)):
                    pump = threading.Thread(target=_pump, args=(source, sink, kept), daemon=True)
                    pump.start()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if kept is not None:
                kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def say(port: int, data: bytes) -> bytes:
    """Send `data` in one piece; returns all that is heard until the other side closes."""
    heard = bytearray()
    with (
        socket.create_connection((ADDR, port), timeout=PATIENCE_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        while piece := connection.recv(65536):
            heard += piece
    return bytes(heard)


def fall_silent(port: int, beginnings: Sequence[bytes]) -> list[socket.socket]:
    """Begin connections and go on with none of them; returns them, open."""
    silent = []
    for beginning in beginnings:
        connection = socket.create_connection((ADDR, port), timeout=PATIENCE_S)
        silent.append(connection)
        with contextlib.suppress(ConnectionError):
            connection.sendall(beginning)
    return silent


def throw_garbage(port: int, seed: int) -> None:
    """Connections with random bytes, short ones and long ones, that are closed at once."""
    rng = random.Random(seed)
    for size in (1, 16, 64, 96, 4096, 200_000):
        with (
            socket.create_connection((ADDR, port), timeout=PATIENCE_S) as connection,
            contextlib.suppress(ConnectionError),
        ):
            connection.sendall(rng.randbytes(size))
