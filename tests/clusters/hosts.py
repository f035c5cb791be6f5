# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Machines on a network, which share no files with the one that starts jobs, and which it reaches.

    with (
        hosts_network(2) as (address, links),
        machines_of(links, "sshd", folder=folder, logs=folder) as machines,
    ):
        subprocess.run(machines["host-0"].command(["hostname"]))
        machines["host-1"].power_off()        # gone, and nobody was told
        links["host-1"].silence()             # from now on its packets vanish

    host-0 (10.N.0.1)  ─┐
                        ├─ bridge ── this machine (10.N.0.254)
    host-1 (10.N.0.2)  ─┘

Each has processes, network, host name, shared memory, `/tmp`, `/run` and home of its own. What else
lies on the disk they see as this machine does, Python and this package above all.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.clusters.machine import Machine, NoMachine, machine
from tests.clusters.machine import why_not as why_no_machine
from tests.multihost.hosts import Host, network
from tests.multihost.namespaces import why_not as why_no_network

_REPOSITORY = Path(__file__).parents[2]

# $1: a folder of this machine; $2 and following: folders that it has for itself, then `--`, then
# what stays in them of this machine, `--`.
_OWN_FILES = """
    set -e
    mount -t tmpfs -o size=16m none /run
    mkdir -p /run/smd /run/kept
    mount --bind "$1" /run/smd
    shift
    own=()
    while [ "$1" != -- ]; do own+=("$1"); shift; done
    shift
    kept=()
    while [ "$1" != -- ]; do kept+=("$1"); shift; done
    shift
    number=0
    for each in "${kept[@]}"; do
        number=$((number + 1))
        mkdir "/run/kept/$number"
        mount --bind "$each" "/run/kept/$number"
    done
    for each in "${own[@]}"; do mount -t tmpfs -o mode=1777,size=4g none "$each"; done
    number=0
    for each in "${kept[@]}"; do
        number=$((number + 1))
        mkdir -p "$each"
        mount --bind "/run/kept/$number" "$each"
    done
"""


def why_not(*programs: str) -> str | None:
    """Why there can be no such machines here, in words; None if there can."""
    return why_no_machine(*programs) or why_no_network()


@contextlib.contextmanager
def hosts_network(count: int) -> Iterator[tuple[str, Mapping[str, Host]]]:
    """The network of machines to be made, and this machine's address in it."""
    subnet = _free_subnet()
    with network(count, subnet=subnet) as links:
        here = f"{subnet}.0.254"
        with _joined(links[0], here):
            yield here, {each.name: each for each in links}


@contextlib.contextmanager
def machines_of(
    links: Mapping[str, Host],
    script: str,
    *,
    folder: Path,
    logs: Path,
    hidden: Sequence[Path] = (),
) -> Iterator[Mapping[str, Machine]]:
    """The machine of each host of the network.

    Args:
        links: the hosts, by name.
        script: for bash, which has run when the machine is there; `$0` is its name.
        folder: of this machine, which they see as `/run/smd`.
        logs: where `NAME.log` of each gets what its script prints.
        hidden: more folders that are empty there, beside temporary ones and the home directory.

    Raises:
        NoMachine: they do not start; ask `why_not()` before.
    """
    own = [Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path.home().resolve(), *hidden]
    own = [each for each in dict.fromkeys([*own, Path("/dev/shm")]) if each.is_dir()]
    used = (_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    kept = [each for each in used if any(each.is_relative_to(here) for here in own)]
    arguments = [str(folder), *map(str, own), "--", *map(str, kept), "--"]
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                machine(
                    name,
                    _OWN_FILES + script,
                    *arguments,
                    prefix=link.inside.prefix(),
                    log=logs / f"{name}.log",
                )
            )
            for name, link in links.items()
        }


def _free_subnet() -> str:
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    free = [each for each in range(128, 250) if f"10.{each}." not in routes]
    return f"10.{random.SystemRandom().choice(free)}"


@contextlib.contextmanager
def _joined(host: Host, address: str) -> Iterator[None]:
    """This machine has a port of the switch; it goes with the switch too, some time later."""
    name = f"smd{os.urandom(4).hex()}"
    host.switch.run(f"ip link add name uplink type veth peer name {name} netns {os.getpid()}")
    host.switch.run(f"ip link set dev uplink master {host.nics[0].bridge} up")
    try:
        _ip(f"address add {address}/32 dev {name}")
        _ip(f"link set dev {name} up")
        # Refused if another test has this network already.
        _ip(f"route add {address.rpartition('.')[0]}.0/24 dev {name} src {address}")
        yield
    finally:
        _ip(f"link delete {name}")


def _ip(words: str) -> None:
    outcome = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if outcome.returncode != 0:
        raise NoMachine(f"ip {words}: {outcome.stderr.strip()}")
