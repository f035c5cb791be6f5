# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Two machines with SSH servers, which share no files with the one that starts jobs.

    with ssh_hosts() as hosts:
        subprocess.run(["ssh", "-F", hosts.config, "host-0", "hostname"])
        hosts.machines["host-1"].power_off()        # gone, and nobody was told
        hosts.links["host-1"].silence()             # from now on its packets vanish

What they share with this machine, and what not: `hosts.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.clusters.hosts import hosts_network, machines_of
from tests.clusters.hosts import why_not as why_no_hosts
from tests.clusters.machine import Machine, NoMachine, folder_of_its_own
from tests.multihost.hosts import Host

_START_S = 30.0
_LOOK_S = 0.02

_SERVER = """\
Port 22
ListenAddress 0.0.0.0
HostKey /run/smd/{name}
AuthorizedKeysFile /run/smd/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
MaxSessions 100
UseDNS no
PrintMotd no
"""
_CLIENT = """\
Host {name}
  HostName {address}
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""
_SCRIPT = """
    mkdir -p /run/sshd
    /usr/sbin/sshd -D -e -f "/run/smd/$0.conf" </dev/null >&2 &
"""


def why_not() -> str | None:
    """Why there can be no such machines here, in words; None if there can."""
    return why_no_hosts("sshd", "ssh", "ssh-keygen")


@dataclasses.dataclass(frozen=True)
class SshHosts:
    """Machines that run.

    Attributes:
        config: for `ssh -F`: it has the names, the key and the host keys.
        names: of the machines, as `config` has them.
        address: of this machine, as they see it.
        machines: by name: the processes.
        links: by name: the network.
        folder: with all keys: `known_hosts`, and `NAME.log` of each server.
    """

    config: Path
    names: Sequence[str]
    address: str
    machines: Mapping[str, Machine]
    links: Mapping[str, Host]
    folder: Path

    def run(self, name: str, command: str, check: bool = True) -> str:
        """What a shell's command prints on one of them, over SSH."""
        return subprocess.run(
            ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", name, command],
            check=check,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout


@contextlib.contextmanager
def ssh_hosts(count: int = 2, *, hidden: Sequence[Path] = ()) -> Iterator[SshHosts]:
    """Machines with SSH servers, reachable from here; on leaving, nothing of them is left.

    Args:
        count: how many.
        hidden: more folders that are empty there, beside temporary ones and the home directory.

    Raises:
        NoMachine: they do not start; ask `why_not()` before.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of_its_own("smd-ssh"))
        here, links = stack.enter_context(hosts_network(count))
        _make_keys(folder, links)
        machines = stack.enter_context(
            machines_of(links, _SCRIPT, folder=folder / "there", logs=folder, hidden=hidden)
        )
        hosts = SshHosts(folder / "config", list(links), here, machines, links, folder)
        for name in links:
            _wait_for(hosts, name)
        yield hosts


def _make_keys(folder: Path, links: Mapping[str, Host]) -> None:
    there = folder / "there"
    there.mkdir()
    user = getpass.getuser()
    _keygen(folder / "key", f"{user}@launcher")
    (there / "key.pub").write_bytes((folder / "key.pub").read_bytes())
    known, client = "", ""
    for name, link in links.items():
        _keygen(there / name, name)
        (there / f"{name}.conf").write_text(_SERVER.format(name=name))
        known += f"{link.address} {(there / f'{name}.pub').read_text()}"
        client += _CLIENT.format(name=name, address=link.address, folder=folder)
    (folder / "known_hosts").write_text(known)
    (folder / "config").write_text(client)


def _keygen(path: Path, comment: str) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _wait_for(hosts: SshHosts, name: str) -> None:
    until = time.monotonic() + _START_S
    while hosts.run(name, "echo up", check=False) != "up\n":
        if time.monotonic() > until:
            log = (hosts.folder / f"{name}.log").read_text(errors="replace")
            raise NoMachine(f"the SSH server of {name} did not answer in {_START_S:g} s: {log}")
        time.sleep(_LOOK_S)
