# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: network namespaces joined by a switch, over links of a given rate.

    with network(2, gbit=1) as hosts:
        run_ranks_on(hosts, [2, 2], average)          # placement.py
        hosts[1].silence()                            # from now on its packets vanish

    host-0 (10.77.0.1)           switch           host-1 (10.77.0.2)
    ┌────────────────┐   ┌─────────────────────┐   ┌────────────────┐
    │ eth0 (tbf) ────┼───┼ port0-0 br0 port0-1 ┼───┼──── eth0 (tbf) │
    └────────────────┘   └─────────────────────┘   └────────────────┘

Every host has its own interfaces, addresses, loopback, routes, abstract Unix sockets and host name;
files, processes, memory and processors are shared by all. With several NICs, NIC k of all hosts is
in the network 10.77.k.0/24 and joined by a bridge of its own.

A link is shaped by a token bucket (`tc tbf`) on the host's end: every host is limited in what it
sends. What it is sent is limited by what the others may send to it; that two of them at once can
send it more than its own rate is a difference to a real switch, and `both_ways` takes it away: then
the switch's port shapes and queues too, and drops what comes beyond that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence

from tests.multihost.namespaces import Namespaces, namespaces

MTU = 1500
# Of a frame of 1500 bytes payload (1514 on the wire as tbf counts it), the share that is data:
# 20 bytes IPv4, 20 TCP and 12 of its timestamps are headers, and 14 Ethernet's.
HEADER_CAP = (MTU - 52) / (MTU + 14)

# The bucket: the time a link may be idle and still send at full rate on average. A timer that comes
# late on a busy machine must not cost bandwidth; and one packet as TCP hands it down (64 KiB, with
# the headers of its 45 frames) must fit, or the kernel cuts each one up on the processor.
_BURST_S = 1e-3
_MIN_BURST_BYTES = 128 * 1024
# The queue behind the bucket: 10 ms, the depth of a shallow switch; more is dropped.
_QUEUE_S = 10e-3
_MIN_QUEUE_BYTES = 512 * 1024


@dataclasses.dataclass(frozen=True)
class Nic:
    """One interface of a host, and its port of the switch.

    `name` is the interface's in the host, `port` that of the switch's end, `bridge` joins the ports
    of all hosts.
    """

    name: str
    address: str
    port: str
    bridge: str


@dataclasses.dataclass(frozen=True)
class Host:
    """One test host. Faults take effect at once and last until `heal()` or a new rate."""

    index: int
    name: str
    nics: tuple[Nic, ...]
    inside: Namespaces
    switch: Namespaces

    @property
    def address(self) -> str:
        """IPv4 address of the first NIC."""
        return self.nics[0].address

    def command(self, command: Sequence[str]) -> list[str]:
        """`command` so that it runs on this host."""
        return [*self.inside.prefix(), *command]

    def set_rate(
        self,
        gbit: float,
        *,
        nic: int = 0,
        both_ways: bool = False,
        port_queue_bytes: int | None = None,
    ) -> None:
        """Shape the link to `gbit` Gbit/s: what the host sends, or `both_ways`.

        With `both_ways` and a shallow `port_queue_bytes` (100 kB, say: a packet of 64 KiB must fit)
        packets from hosts that send faster than this one receives are lost when the link is busy.
        Losses at random, or another order, take a kernel with netem. A host's own queue does not
        serve to lose packets: the kernel tells TCP at once what did not fit.
        """
        chosen = self.nics[nic]
        _shape(self.inside, chosen.name, gbit)
        if both_ways:
            _shape(self.switch, chosen.port, gbit, port_queue_bytes)

    def unplug(self, nic: int = 0) -> None:
        """Pull the cable: the interface stays up and loses its carrier."""
        self.switch.run(f"ip link set dev {self.nics[nic].port} down")

    def take_down(self, nic: int = 0) -> None:
        """Switch the interface off on the host itself; its routes go too."""
        self.inside.run(f"ip link set dev {self.nics[nic].name} down")

    def silence(self, nic: int = 0) -> None:
        """Make all packets to and from the host vanish, and tell nobody: half-open connections.

        The carrier stays, no reset comes, nothing is unreachable.
        """
        self.switch.run(f"ip link set dev {self.nics[nic].port} nomaster")

    def lose_packets_to(self, other: Host, nic: int = 0) -> None:
        """Make packets to `other` vanish, one way only: they are sent to a wrong MAC address."""
        self.inside.run(
            f"ip neigh replace {other.nics[nic].address} dev {self.nics[nic].name}"
            " lladdr 02:00:00:00:00:ff nud permanent"
        )

    def refuse(self, other: Host, nic: int = 0) -> None:
        """Make `other` unreachable from here: the kernel answers sends with an error at once."""
        self.inside.run(f"ip route replace unreachable {other.nics[nic].address}/32")

    def heal(self) -> None:
        """Undo `unplug`, `take_down`, `silence`, `lose_packets_to` and `refuse`; rates stay."""
        self.inside.run("ip route flush type unreachable")
        for nic in self.nics:
            self.inside.run(f"ip link set dev {nic.name} up")
            self.inside.run(f"ip neigh flush dev {nic.name} nud permanent")
            self.switch.run(f"ip link set dev {nic.port} master {nic.bridge} up")

    def sent_bytes(self, nic: int = 0) -> int:
        """Bytes that have left the interface since it was made, one header per 64 KiB included."""
        text = self.inside.run(f"ip -json -statistics link show dev {self.nics[nic].name}")
        return int(json.loads(text)[0]["stats64"]["tx"]["bytes"])

    def add_container_bridge(self) -> None:
        """Add docker0 with the address it has on every host, up and with a container's veth in it.

        It is the same 172.17.0.1 everywhere: who takes it for a host's address talks to itself.
        """
        for words in (
            "link add name docker0 type bridge",
            "address add 172.17.0.1/16 dev docker0",
            "link add name veth1a2b3c4 type veth peer name inside0",
            "link set dev veth1a2b3c4 master docker0 up",
            "link set dev inside0 up",
            "link set dev docker0 up",
        ):
            self.inside.run(f"ip {words}")


@contextlib.contextmanager
def network(
    count: int,
    *,
    gbit: float | Sequence[float] | None = None,
    both_ways: bool = False,
    nics: int = 1,
    container_bridge: bool = False,
    subnet: str = "10.77",
) -> Iterator[list[Host]]:
    """`count` hosts joined by a switch; on leaving, whatever runs on them is killed.

    Args:
        count: 2 to 8 hosts, named host-0, host-1, ...
        gbit: rate of the links in Gbit/s (10^9 bits), one for all or one per host; None leaves them
            as fast as the processor.
        both_ways: limit what a host is sent as well as what it sends.
        nics: NICs per host, each on a network of its own; `gbit` is the rate of each.
        container_bridge: give every host a docker0, before its NICs.
        subnet: the first half of all addresses; matters where the network is joined to another.

    Raises `CommandFailed` where that is not permitted; ask `why_not()` before.
    """
    rates = list(gbit) if isinstance(gbit, Sequence) else [gbit] * count
    if len(rates) != count:
        raise ValueError(f"{len(rates)} rates for {count} hosts; pass one rate, or one per host.")
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(namespaces("switch"))
        for k in range(nics):
            switch.run(f"ip link add name br{k} type bridge")
            switch.run(f"ip link set dev br{k} up")
        hosts = []
        for index in range(count):
            name = f"host-{index}"
            inside = stack.enter_context(namespaces(name))
            cards = tuple(
                Nic(f"eth{k}", f"{subnet}.{k}.{index + 1}", f"port{k}-{index}", f"br{k}")
                for k in range(nics)
            )
            hosts.append(Host(index, name, cards, inside, switch))
        for host, rate in zip(hosts, rates, strict=True):
            if container_bridge:
                host.add_container_bridge()
            for k, nic in enumerate(host.nics):
                _connect(host, nic)
                if rate is not None:
                    host.set_rate(rate, nic=k, both_ways=both_ways)
        yield hosts


def _connect(host: Host, nic: Nic) -> None:
    host.switch.run(
        f"ip link add name {nic.port} mtu {MTU} type veth"
        f" peer name {nic.name} mtu {MTU} netns {host.inside.pid}"
    )
    host.switch.run(f"ip link set dev {nic.port} master {nic.bridge} up")
    host.inside.run(f"ip address add {nic.address}/24 dev {nic.name}")
    host.inside.run(f"ip link set dev {nic.name} up")


def _shape(where: Namespaces, interface: str, gbit: float, queue_bytes: int | None = None) -> None:
    bytes_per_s = gbit * 1e9 / 8
    burst = max(_MIN_BURST_BYTES, round(_BURST_S * bytes_per_s))
    limit = queue_bytes or max(_MIN_QUEUE_BYTES, round(_QUEUE_S * bytes_per_s))
    where.run(
        f"tc qdisc replace dev {interface} root tbf"
        f" rate {round(gbit * 1e9)}bit burst {burst} limit {limit}"
    )
