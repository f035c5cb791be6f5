# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the links between hosts carry: each byte once, however many ranks a host has.

Counted by the kernel at each host's interface. Source: docs/algorithms.md, "Several hosts".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.multihost.hosts import Host, network
from tests.multihost.placement import run_ranks_on

DEADLINE_S = 120.0
COUNT = 3 << 20  # int32 elements of the whole: 12 MiB
WHOLE = 4 * COUNT
# Headers of packets and messages, acknowledgements, barriers.
OVERHEAD = 1.12
SLACK = 200_000

Layout = tuple[int, ...]
LAYOUTS: list[Layout] = [(2, 2), (2, 2, 2), (3, 1)]


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[list[Host]]:
    with network(3) as hosts:
        yield hosts


def sent() -> int:
    """Bytes that this host's interface has sent; it also receives what the switch floods."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    raise AssertionError("this host has no eth0")


def bytes_of_collectives(rank: int, world_size: int) -> dict[str, int]:
    """Bytes sent by this rank's host, by collective."""
    from smdistributed import collectives

    part = COUNT // world_size
    whole, mine = np.zeros(part * world_size, np.int32), np.zeros(part, np.int32)
    found = {}
    with collectives.init(timeout_s=DEADLINE_S / 2) as comm:
        calls = {
            "all_gather": lambda: comm.all_gather(whole, mine),
            "reduce_scatter": lambda: comm.reduce_scatter(mine, whole),
            "broadcast": lambda: comm.broadcast(whole, world_size - 1),
            "all_reduce": lambda: comm.all_reduce(whole),
        }
        for name, call in calls.items():
            call()  # connections are made at the first use
            comm.barrier()
            before = sent()
            comm.barrier()
            call()
            comm.barrier()
            found[name] = sent() - before
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "+".join(map(str, layout)))
def test_a_host_sends_no_more_than_it_must(layout: Layout, three_hosts: list[Host]) -> None:
    found = run_ranks_on(three_hosts, layout, bytes_of_collectives, deadline_s=DEADLINE_S)
    hosts, size = len(layout), sum(layout)
    first_rank = 0
    for host, ranks in enumerate(layout):
        is_root = host == hosts - 1
        bounds = {
            "all_gather": WHOLE * ranks / size * (hosts - 1),
            "reduce_scatter": WHOLE * (size - ranks) / size,
            "broadcast": WHOLE * (1 if is_root else (hosts - 2) / (hosts - 1)),
            "all_reduce": 2 * WHOLE * (hosts - 1) / hosts,
        }
        for name, least in bounds.items():
            most = OVERHEAD * least + SLACK
            assert least <= found[first_rank][name] <= most, (host, name)
        first_rank += ranks
