# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank holds that could outlive it, written down for a test to look for after its death."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a rank holds that could outlive it.

    A port that another process listens on later has the same number, and another inode.
    """

    pid: int
    ports: tuple[int, ...]
    unix_sockets: tuple[str, ...]
    inodes: frozenset[str]


def write_resources(rank: int, folder: str) -> None:
    """Writes down what this rank holds, for a test to look for after its death."""
    held = resources_of_this_process()
    lines = [str(held.pid), " ".join(map(str, held.ports)), " ".join(held.unix_sockets)]
    lines.append(" ".join(held.inodes))
    Path(folder, f"resources-{rank}").write_text("\n".join(lines))


def read_resources(folder: Path) -> list[Resources]:
    found = []
    for path in sorted(folder.glob("resources-*")):
        pid, ports, unix_sockets, inodes = path.read_text().split("\n")
        ports_ = tuple(int(port) for port in ports.split())
        sockets = tuple(unix_sockets.split()), frozenset(inodes.split())
        found.append(Resources(int(pid), ports_, *sockets))
    return found


def left_of(held: Resources) -> list[str]:
    """In words, which sockets of a process that has ended somebody holds all the same."""
    ports = [f"port {port}" for port, inode in listening_ports() if inode in held.inodes]
    names = [f"socket {name}" for name, inode in unix_socket_names() if inode in held.inodes]
    return ports + names


def resources_of_this_process() -> Resources:
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    ports = tuple(port for port, inode in listening_ports() if inode in inodes)
    unix_sockets = tuple(name for name, inode in unix_socket_names() if inode in inodes)
    return Resources(os.getpid(), ports, unix_sockets, frozenset(inodes))


def listening_ports() -> list[tuple[int, str]]:
    """(port, inode) of every listening TCP socket of this network namespace."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # TCP_LISTEN
                    found.append((int(fields[1].rpartition(":")[2], 16), fields[9]))
    return found


def unix_socket_names() -> list[tuple[str, str]]:
    """(name, inode) of every named Unix socket."""
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8:
            found.append((fields[7], fields[6]))
    return found
