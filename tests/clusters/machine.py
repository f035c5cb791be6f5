# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Machines within this one: each has processes, mounts and a host name of its own.

    with machine("n1", "slurmd -N n1", "") as n1:
        n1.processes()      # as this machine counts them
        n1.power_off()      # all of them are gone at once, and nobody was told

The first process of a machine waits until the pipe from its maker closes, which the kernel does for
a maker that was killed as well. With it go all others of the machine, daemons too, and all mounts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

_NAMESPACES = ("--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")
# Who is left without a parent is given to the first process, and nobody waits for it there: the
# kernel takes it away if SIGCHLD is ignored, which daemons must not inherit.
_SETUP = 'echo "$0" > /proc/sys/kernel/hostname && { %s\n} && echo up && trap "" CHLD && exec cat'
_END_S = 20.0


class NoMachine(Exception):
    """A machine could not be made."""


def why_not(*programs: str) -> str | None:
    """Why this process cannot make machines that have these programs; None if it can."""
    missing = [each for each in programs if shutil.which(each, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not found; make env-clusters installs it"
    if os.geteuid() != 0:
        return "the machines of make env-clusters need root, for their namespaces"
    trial = subprocess.run(
        ["unshare", *_NAMESPACES, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if trial.returncode == 0:
        return None
    return f"the machines of make env-clusters need namespaces: {trial.stderr.strip()}"


def _path() -> str:
    """Where programs of administrators are, too."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclasses.dataclass(frozen=True)
class Machine:
    """One that runs.

    Attributes:
        name: its host name.
        pid: of its first process, as this machine counts them.
    """

    name: str
    pid: int
    _holder: subprocess.Popen[bytes]

    def command(self, command: Sequence[str]) -> list[str]:
        """`command` so that it runs there."""
        return [
            *("nsenter", "--target", str(self.pid), "--pid", "--mount", "--uts", "--net", "--"),
            *command,
        ]

    def processes(self, *words: str) -> list[int]:
        """Those that run there, but for the first one; with all the words in their commands."""
        found = []
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                is_there = os.readlink(f"/proc/{pid}/ns/pid") == self._namespace
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if is_there and pid != self.pid and all(each in command for each in words):
                    found.append(pid)
        return found

    @property
    def _namespace(self) -> str:
        return os.readlink(f"/proc/{self.pid}/ns/pid")

    def power_off(self) -> None:
        """Takes it away, with all that runs there. Once is as good as twice."""
        assert self._holder.stdin is not None
        with contextlib.suppress(OSError):
            self._holder.stdin.close()
        try:
            self._holder.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()  # and the first process of the machine with it
            self._holder.wait()


@contextlib.contextmanager
def machine(
    name: str, script: str, *arguments: str, prefix: Sequence[str] = (), log: Path | None = None
) -> Iterator[Machine]:
    """A new machine, on which a shell has run `script`; on leaving, all of it is gone.

    Args:
        name: of the host.
        script: for bash; what it leaves running in the background runs there.
        arguments: `$1`, `$2` and so on of the script.
        prefix: before the command that makes the machine: enters namespaces of its network.
        log: what the script and what it starts prints; None: nowhere.

    Raises:
        NoMachine: it could not be made, or the script has failed.
    """
    with (log or Path(os.devnull)).open("ab") as errors:
        holder = subprocess.Popen(
            [*prefix, "unshare", *_NAMESPACES, "bash", "-c", _SETUP % script, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PATH": _path()},
            process_group=0,  # Ctrl-C is for the one who tests
        )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"up\n":
            said = log.read_text(errors="replace")[-2000:] if log is not None else ""
            raise NoMachine(f"no machine {name}: {why_not() or said or 'its script has failed'}")
        made = Machine(name, _only_child(holder.pid), holder)
        try:
            yield made
        finally:
            made.power_off()
    finally:
        if not holder.stdin.closed:
            holder.stdin.close()
        holder.wait(_END_S)
        holder.stdout.close()


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@contextlib.contextmanager
def folder_of_its_own(prefix: str) -> Iterator[Path]:
    """A temporary folder, which is taken away even if this process is killed."""
    made = subprocess.run(
        ["mktemp", "-d", "-t", f"{prefix}-XXXXXX"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # Daemons may write to it for a moment longer.
    script = 'cat; for i in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$0" && exit; sleep 0.2; done'
    remover = subprocess.Popen(
        ["sh", "-c", script, made],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    assert remover.stdin is not None
    try:
        yield Path(made)
    finally:
        remover.stdin.close()
        remover.wait(_END_S)
