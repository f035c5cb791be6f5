# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where other machines reach this one."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

__all__ = ["interface_of", "own_address"]

_SIOCGIFADDR = 0x8915


def own_address(environ: Mapping[str, str] = os.environ) -> str:
    """The address of this machine: that to which who has started this one has come, by SSH.

    Without such a connection it is the address of its name; that of the loopback if it has none.
    """
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and not _is_loopback(words[2]):
        return words[2]
    with contextlib.suppress(OSError):
        for found in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            address = str(found[4][0])
            if not _is_loopback(address) and interface_of(address):
                return address
    return words[2] if len(words) == 4 else "127.0.0.1"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def interface_of(address: str) -> str:
    """The network interface that has an address; empty if none has."""
    with contextlib.suppress(ValueError, OSError):
        if ipaddress.ip_address(address).version == 6:
            return _of_six(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                    if socket.inet_ntoa(answer[20:24]) == address:
                        return name
    return ""


def _of_six(address: str) -> str:
    wanted = ipaddress.ip_address(address).packed.hex()
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        words = line.split()
        if words and words[0] == wanted:
            return words[-1]
    return ""
