# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Two machines with SSH servers, which share no files with the one that starts jobs.

    with ssh_hosts() as hosts:
        subprocess.run(["ssh", "-F", hosts.config, "host-0", "hostname"])
        hosts.machines["host-1"].power_off()        # gone, and nobody was told
        hosts.links["host-1"].silence()             # from now on its packets vanish

    host-0 (10.N.0.1)  ─┐
                        ├─ bridge ── this machine (10.N.0.254)
    host-1 (10.N.0.2)  ─┘

Each has processes, network, host name, `/tmp`, `/run` and home of its own. What else lies on the
disk they see as this machine does, Python and this package above all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.clusters.machine import Machine, NoMachine, folder_of_its_own, machine
from tests.clusters.machine import why_not as why_no_machine
from tests.multihost.hosts import Host, network
from tests.multihost.namespaces import why_not as why_no_network

_REPOSITORY = Path(__file__).parents[2]
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
# $1: its files; $2 and following: folders that it has for itself, then `--`, then what stays in
# them of this machine.
_SCRIPT = """
    set -e
    mount -t tmpfs -o size=16m none /run
    mkdir -p /run/sshd /run/smd /run/kept
    mount --bind "$1" /run/smd
    shift
    own=()
    while [ "$1" != -- ]; do own+=("$1"); shift; done
    shift
    number=0
    for each in "$@"; do
        number=$((number + 1))
        mkdir "/run/kept/$number"
        mount --bind "$each" "/run/kept/$number"
    done
    for each in "${own[@]}"; do mount -t tmpfs -o mode=1777,size=4g none "$each"; done
    number=0
    for each in "$@"; do
        number=$((number + 1))
        mkdir -p "$each"
        mount --bind "/run/kept/$number" "$each"
    done
    /usr/sbin/sshd -D -e -f "/run/smd/$0.conf" </dev/null >&2 &
"""


def why_not() -> str | None:
    """Why there can be no such machines here, in words; None if there can."""
    return why_no_machine("sshd", "ssh", "ssh-keygen") or why_no_network()


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
    own = [Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path.home().resolve(), *hidden]
    own = [each for each in dict.fromkeys(own) if each.is_dir()]
    used = (_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    kept = [each for each in used if any(each.is_relative_to(folder) for folder in own)]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of_its_own("smd-ssh"))
        subnet = _free_subnet()
        links = {each.name: each for each in stack.enter_context(network(count, subnet=subnet))}
        here = f"{subnet}.0.254"
        _join(next(iter(links.values())), here)
        _make_keys(folder, links)
        machines = {}
        for name, link in links.items():
            log = folder / f"{name}.log"
            files = folder / "there"
            made = machine(
                *(name, _SCRIPT, str(files), *map(str, own), "--", *map(str, kept)),
                prefix=link.inside.prefix(),
                log=log,
            )
            machines[name] = stack.enter_context(made)
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


def _free_subnet() -> str:
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    free = [each for each in range(128, 250) if f"10.{each}." not in routes]
    return f"10.{random.SystemRandom().choice(free)}"


def _join(host: Host, address: str) -> None:
    """This machine gets a port of the switch, which goes with the switch."""
    name = f"smd{os.urandom(4).hex()}"
    host.switch.run(f"ip link add name uplink type veth peer name {name} netns {os.getpid()}")
    host.switch.run(f"ip link set dev uplink master {host.nics[0].bridge} up")
    network_of_it = address.rpartition(".")[0] + ".0/24"
    for words in (
        f"address add {address}/32 dev {name}",
        f"link set dev {name} up",
        # Refused if another test has this network already.
        f"route add {network_of_it} dev {name} src {address}",
    ):
        outcome = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
        if outcome.returncode != 0:
            raise NoMachine(f"ip {words}: {outcome.stderr.strip()}")


def _wait_for(hosts: SshHosts, name: str) -> None:
    until = time.monotonic() + _START_S
    while hosts.run(name, "echo up", check=False) != "up\n":
        if time.monotonic() > until:
            log = (hosts.folder / f"{name}.log").read_text(errors="replace")
            raise NoMachine(f"the SSH server of {name} did not answer in {_START_S:g} s: {log}")
        time.sleep(_LOOK_S)
