# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Brings couriers to a door, one after the other, until the job is over.

The courier is a process of its own on two pipes, as elsewhere; here they end in a connection.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

from smdistributed.launch.courier.sockets import SocketLink, StrangerError, called

__all__ = ["call"]

_AGAIN_S = 1.0
_AT_ONCE = 1 << 16


def call(
    address: str,
    port: int,
    number: int,
    secret: bytes,
    own_address: str,
    patience_s: float,
    say: Callable[[str], None],
    is_unwanted: Callable[[], bool] = lambda: False,
) -> bool:
    """Calls until the job is over.

    Args:
        address, port: of the door; the name may become known later.
        number: of this host.
        secret: of the job.
        own_address: of this machine.
        patience_s: how long nobody may be at the door.
        say: is told what is waited for.
        is_unwanted: nobody is waited for any more, who is not there.

    Returns: whether the job is over; else nobody was there for too long, or is waited for.
    """
    heard_at = time.monotonic()
    where = address
    while time.monotonic() - heard_at < patience_s:
        try:
            where = _found(address) or where  # names go before the job is over there
            link = called(where, port, number, secret)
        except (OSError, StrangerError) as error:
            say(f"nobody is at {address}:{port} yet: {error}")
            if is_unwanted():
                return False
            time.sleep(_AGAIN_S)
            continue
        if link is None:
            return True
        _run_courier(link, own_address)
        heard_at = time.monotonic()
    return False


def _found(name: str) -> str:
    """The address of a name; empty: nobody knows it now."""
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(name, None)[0][4][0])
    return ""


def _run_courier(link: SocketLink, own_address: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "smdistributed.launch.courier.host", own_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as courier:
        assert courier.stdin is not None
        assert courier.stdout is not None
        reading = threading.Thread(target=_bring, args=(link, courier.stdin), daemon=True)
        reading.start()
        with contextlib.suppress(OSError):
            while content := courier.stdout.read(_AT_ONCE):
                link.write(content)
        link.cut()
        reading.join()
        courier.wait()
    link.free()


def _bring(link: SocketLink, courier: IO[bytes]) -> None:
    """What comes to the courier; with the connection its standard input ends."""
    with contextlib.suppress(OSError, ValueError):
        while content := link.read():
            rest = memoryview(content)
            while rest:
                rest = rest[courier.write(rest) or 0 :]
    with contextlib.suppress(OSError):
        courier.close()
