# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Couriers that come to the job's process over a network, where nothing else carries them.

Both ends know a secret of the job. Each proves that it does, and each piece that follows has a
code (HMAC-SHA256) over its place and its content: who does not know the secret can neither begin
nor change anything. What is sent can be read by who can read the network.

    the door             32 random bytes
    who comes            32 random bytes, its number, and a code over all of that
    the door             whether it is wanted, and a code
    both                 pieces: length, code, content
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from smdistributed._common.errors import SmdistributedError

__all__ = ["Door", "SocketLink", "StrangerError", "called"]

_NONCE = 32
_CODE = 32
_HEAD = struct.Struct(">I")
_PLACE = struct.Struct(">QI")
_NUMBER = struct.Struct(">I")
_MOST_PIECE = 1 << 20
_GREETING_S = 10.0
# A machine that is gone says nothing; the couriers themselves say each second that they are there.
_SILENT_S = 60.0


class StrangerError(SmdistributedError):
    """The other end does not know the job's secret, or what it sends was changed."""


def _code(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), hashlib.sha256)


class SocketLink:
    """A `Link` over a connection whose ends have greeted each other.

    Args:
        connection: it is this object's.
        incoming, outgoing: keys for the codes of each direction.
    """

    def __init__(self, connection: socket.socket, incoming: bytes, outgoing: bytes) -> None:
        self._connection = connection
        self._keys = incoming, outgoing
        self._num_read = self._num_written = 0
        self._outbox = threading.Lock()
        self._why = ""
        connection.settimeout(_SILENT_S)

    def pids(self) -> list[int]:
        """A connection is no process."""
        return []

    def read(self) -> bytes:
        """As of `Link`."""
        try:
            (size,) = _HEAD.unpack(_exactly(self._connection, _HEAD.size))
            if size > _MOST_PIECE:
                raise StrangerError(f"a piece of {size:,} bytes is announced")
            code = _exactly(self._connection, _CODE)
            content = _exactly(self._connection, size)
            place = _PLACE.pack(self._num_read, size)
            if not hmac.compare_digest(code, _code(self._keys[0], place, content)):
                raise StrangerError("a piece has a wrong code")
        except (OSError, SmdistributedError) as error:
            self._why = self._why or f"the connection is gone: {error}"
            return b""
        self._num_read += 1
        return content

    def write(self, content: bytes) -> None:
        """As of `Link`."""
        with self._outbox:
            for begin in range(0, len(content), _MOST_PIECE):
                piece = content[begin : begin + _MOST_PIECE]
                place = _PLACE.pack(self._num_written, len(piece))
                code = _code(self._keys[1], place, piece)
                self._connection.sendall(_HEAD.pack(len(piece)) + code + piece)
                self._num_written += 1

    def why_closed(self) -> str:
        """As of `Link`."""
        return self._why or "the connection is closed"

    def cut(self) -> None:
        """As of `Link`."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self, timeout_s: float) -> None:
        """As of `Link`: what it has to say was said, and `read` on another thread sees its end."""
        self.cut()

    def free(self) -> None:
        """As of `Link`."""
        self._connection.close()


class Door:
    """Where couriers come.

    Args:
        address: of this machine.
        port: to listen at; 0: any that is free.
        secret: of the job.

    Attributes:
        port: that it listens at.

    Raises:
        OSError: the port is taken, or such.
    """

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        self._secret = secret
        self._is_over = False
        self._come = threading.Condition()
        self._links: dict[int, SocketLink] = {}
        self._dismissed: set[int] = set()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._listen, name="door", daemon=True).start()

    def take(self, number: int, timeout_s: float, is_unwanted: Callable[[], bool]) -> SocketLink:
        """The link to a courier, once it has come; it is the caller's then.

        Raises:
            TimeoutError: it has not come in time, or is not wanted any more.
        """
        with self._come:
            for _ in range(max(1, round(timeout_s))):
                if self._come.wait_for(lambda: number in self._links, 1.0):
                    return self._links.pop(number)
                if is_unwanted():
                    break
        raise TimeoutError(f"it did not come in {timeout_s:g} s")

    def close(self, numbers: set[int], timeout_s: float) -> None:
        """Tells those that come from now on that the job is over.

        Args:
            numbers: of those that should hear it.
            timeout_s: how long they are waited for.
        """
        with self._come:
            self._is_over = True
            for link in self._links.values():  # they come again, and hear it
                link.cut()
                link.free()
            self._links.clear()
            self._come.wait_for(lambda: numbers <= self._dismissed, timeout_s)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_GREETING_S)
            ours = secrets.token_bytes(_NONCE)
            connection.sendall(ours)
            said = _exactly(connection, _NONCE + _NUMBER.size)
            code = _exactly(connection, _CODE)
            if not hmac.compare_digest(code, _code(self._secret, b"comes", ours, said)):
                raise StrangerError("a stranger came to the door")
            (number,) = _NUMBER.unpack(said[_NONCE:])
            with self._come:
                answer = b"0" if self._is_over else b"1"
                connection.sendall(answer + _code(self._secret, b"door", ours, said, answer))
                if self._is_over:
                    connection.close()
                    self._dismissed.add(number)
                else:
                    old = self._links.pop(number, None)
                    if old is not None:  # it was lost, and has come again
                        old.cut()
                        old.free()
                    self._links[number] = SocketLink(
                        connection, *_keys(self._secret, ours, said, is_door=True)
                    )
                self._come.notify_all()
        except (OSError, SmdistributedError):
            connection.close()


def called(address: str, port: int, number: int, secret: bytes) -> SocketLink | None:
    """Goes to a door. Returns: the link; None if the job is over.

    Raises:
        OSError: nobody is there.
        StrangerError: who is there does not know the secret.
    """
    connection = socket.create_connection((address, port), timeout=_GREETING_S)
    try:
        theirs = _exactly(connection, _NONCE)
        said = secrets.token_bytes(_NONCE) + _NUMBER.pack(number)
        connection.sendall(said + _code(secret, b"comes", theirs, said))
        answer = _exactly(connection, 1)
        code = _exactly(connection, _CODE)
        if not hmac.compare_digest(code, _code(secret, b"door", theirs, said, answer)):
            raise StrangerError(f"{address}:{port} does not know the job's secret")
        if answer == b"0":
            connection.close()
            return None
        return SocketLink(connection, *_keys(secret, theirs, said, is_door=False))
    except BaseException:
        connection.close()
        raise


def _keys(secret: bytes, door: bytes, said: bytes, *, is_door: bool) -> tuple[bytes, bytes]:
    """For what comes in, and what goes out."""
    to_door = _code(secret, b"to the door", door, said)
    from_door = _code(secret, b"from the door", door, said)
    return (to_door, from_door) if is_door else (from_door, to_door)


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            raise ConnectionError("it was closed")
        content += piece
    return bytes(content)
