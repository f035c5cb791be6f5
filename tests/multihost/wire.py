# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A cable between two hosts that loses, repeats and reorders packets; for kernels without netem.

    with network(2) as hosts, BadWire(hosts, lost=0.01, swapped=0.05, repeated=0.01):
        ...

The two hosts' ports are taken from the switch, and a process carries the frames from one to the
other with packet sockets. They travel as the kernel hands them down, headers for offloads included
(PACKET_VNET_HDR), so what is lost or overtaken is a segment of up to 64 KiB: many frames at once.
"""

from __future__ import annotations

import dataclasses
import random
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.multihost.hosts import Host

_ROOT = Path(__file__).resolve().parents[2]
_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_OUTGOING = 263, 15, 4
_LARGEST_FRAME_BYTES = 1 << 17
_BUFFER_BYTES = 8 << 20


@dataclasses.dataclass
class BadWire:
    """Carries frames between the first NICs of two hosts, badly, until it is left.

    Attributes:
        hosts: two.
        lost, swapped, repeated: probability, for each segment, that it vanishes, that the next one
            overtakes it, that it comes twice.
        seed: of the choices.
    """

    hosts: Sequence[Host]
    lost: float = 0.0
    swapped: float = 0.0
    repeated: float = 0.0
    seed: int = 20260

    def __enter__(self) -> Self:
        """Take the switch's place."""
        ports = [host.nics[0].port for host in self.hosts]
        switch = self.hosts[0].switch
        for port in ports:
            switch.run(f"ip link set dev {port} nomaster up")
        chances = [str(chance) for chance in (self.lost, self.swapped, self.repeated, self.seed)]
        self._carrier = subprocess.Popen(
            [*switch.prefix(), sys.executable, "-m", "tests.multihost.wire", *ports, *chances],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            process_group=0,
        )
        assert self._carrier.stdout is not None
        if self._carrier.stdout.readline() != "carries\n":
            raise RuntimeError("the wire does not carry; see its output above")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the ports back to the switch."""
        self.counts = self._carrier.communicate("end\n", timeout=200)[0].strip()
        for host in self.hosts:
            host.heal()


class _End:
    """One end of the wire: where frames come in, and where those of the other end go out."""

    def __init__(self, port: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self.socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self.socket.bind((port, _ETH_P_ALL))
        self.held: bytes | None = None


def _carry(ports: Sequence[str], lost: float, swapped: float, repeated: float, seed: int) -> str:
    rng = random.Random(seed)
    ends = [_End(port) for port in ports]
    counts = {"carried": 0, "lost": 0, "swapped": 0, "repeated": 0}
    print("carries", flush=True)
    while True:
        readable, _, _ = select.select([sys.stdin, *(end.socket for end in ends)], [], [], 0.005)
        if sys.stdin in readable:
            return ", ".join(f"{count} {name}" for name, count in counts.items())
        for source, target in (ends, ends[::-1]):
            if source.socket not in readable:
                if source.held is not None:  # nothing came that could overtake it
                    target.socket.send(source.held)
                    source.held = None
                continue
            frame, where = source.socket.recvfrom(_LARGEST_FRAME_BYTES)
            if where[2] == _PACKET_OUTGOING:
                continue
            counts["carried"] += 1
            chance = rng.random()
            if chance < lost:
                counts["lost"] += 1
                continue
            if chance < lost + swapped and source.held is None:
                counts["swapped"] += 1
                source.held = frame
                continue
            target.socket.send(frame)
            if chance > 1 - repeated:
                counts["repeated"] += 1
                target.socket.send(frame)
            if source.held is not None:
                target.socket.send(source.held)
                source.held = None


if __name__ == "__main__":
    words = sys.argv[1:]
    lost, swapped, repeated = map(float, words[2:5])
    print(_carry(words[:2], lost, swapped, repeated, int(words[5])))
