# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A network and a host name of one's own, held by a process and gone with it.

The namespaces have no names: `/run/netns` stays empty. They live as long as a process is in them,
and the one that holds them ends when the pipe from its maker closes, which the kernel does for a
maker that was killed as well. With the last process go interfaces, addresses, queues and routes. So
there is nothing to clear away after a crash, and two runs at a time cannot collide.

Processes come into the namespaces in one of two ways: `enter()` in a process that was forked, and
`prefix()` before a command.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

_HOW_TO_GET = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_TRIAL = (
    "ip link add name trial0 type bridge && ip link add name trial1 type veth peer name trial2 && "
    "tc qdisc add dev trial1 root tbf rate 1gbit burst 128kb limit 1mb"
)
_END_DEADLINE_S = 20.0
_libc = ctypes.CDLL(None, use_errno=True)


class CommandFailed(Exception):
    """A command that shapes a network was refused."""


@functools.cache
def why_not() -> str | None:
    """Why this process cannot make hosts, as a sentence; None if it can.

    Tries what hosts are made of, in namespaces that are gone at once.
    """
    missing = [program for program in _HOW_TO_GET if shutil.which(program) is None]
    if missing:
        packages = sorted({_HOW_TO_GET[program] for program in missing})
        return (
            f"test hosts need the programs {', '.join(_HOW_TO_GET)}, and {', '.join(missing)} is"
            f" not there. On Debian and Ubuntu: apt-get install {' '.join(packages)}"
        )
    outcome = subprocess.run(
        ["unshare", "--net", "--uts", "sh", "-c", _TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if outcome.returncode == 0:
        return None
    words = (outcome.stderr.strip() or "no reason given").splitlines()[-1]
    return (
        "test hosts need network namespaces, veth, bridge and tbf, and this system refused"
        f" ({words}). Run as root on a kernel that has them (in docker: run --privileged)."
    )


@dataclasses.dataclass(frozen=True)
class Namespaces:
    """A network namespace and a UTS namespace (the host name), as the process that holds them."""

    pid: int

    def prefix(self) -> list[str]:
        """What to put before a command so that it runs inside, as the same process."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--"]

    def enter(self) -> None:
        """Move the calling process inside. It must have one thread, as after a fork."""
        for name in ("net", "uts"):
            descriptor = os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(descriptor, 0) != 0:
                    error = ctypes.get_errno()
                    raise OSError(error, f"setns({name}): {os.strerror(error)}")
            finally:
                os.close(descriptor)

    def run(self, command: str) -> str:
        """Run `command`, split as a shell does, inside; its output. Raises `CommandFailed`."""
        outcome = subprocess.run(
            [*self.prefix(), *shlex.split(command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if outcome.returncode != 0:
            raise CommandFailed(f"`{command}` was refused: {outcome.stderr.strip()}")
        return outcome.stdout

    def others(self) -> list[int]:
        """The processes inside, but for the one that holds the namespaces."""
        mine = _network_of(self.pid)
        pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
        return [
            pid for pid in pids if pid != self.pid and mine is not None and _network_of(pid) == mine
        ]

    def kill_others(self) -> None:
        """End every process inside but the one that holds the namespaces."""
        for pid in self.others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _network_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


@contextlib.contextmanager
def namespaces(host_name: str) -> Iterator[Namespaces]:
    """New namespaces with loopback up; on leaving, all processes inside are killed.

    Raises `CommandFailed` if they cannot be made; ask `why_not()` before.
    """
    setup = 'echo "$0" > /proc/sys/kernel/hostname && ip link set dev lo up && echo up && exec cat'
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "sh", "-c", setup, host_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for the one who tests
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"up\n":
            raise CommandFailed(f"no namespaces for {host_name}: {why_not() or 'see above'}")
        made = Namespaces(holder.pid)
        try:
            yield made
        finally:
            made.kill_others()
    finally:
        holder.stdin.close()  # ends the holder, and with it what was made inside
        try:
            holder.wait(_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()
        holder.stdout.close()
