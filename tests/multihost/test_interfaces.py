# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which interfaces the engine uses between hosts, told by the bytes that have left each.

Source: docs/environment.md, `SMDDP_INTERFACE`; native/common/network.h.
"""

from __future__ import annotations

import pytest

from tests.multihost.hosts import Host, network
from tests.multihost.placement import run_ranks_on

COUNT = 1 << 18
PAYLOAD_BYTES = 4 * COUNT  # what each of two hosts has to send at least, for a sum of COUNT floats


def add(rank: int, world_size: int) -> float:
    import numpy as np

    from smdistributed import collectives

    with collectives.init(timeout_s=60) as comm:
        array = np.full(COUNT, rank + 1, np.float32)
        comm.all_reduce(array)
        return float(array.sum() / COUNT)


def sent_by(host: Host) -> list[int]:
    return [host.sent_bytes(nic) for nic in range(len(host.nics))]


def test_neither_loopback_nor_a_container_bridge_is_chosen() -> None:
    """docker0 comes first in the kernel's order and has the same address on every host."""
    with network(2, container_bridge=True) as hosts:
        assert run_ranks_on(hosts, [2, 2], add) == [10.0] * 4
        assert all(host.sent_bytes() > PAYLOAD_BYTES for host in hosts)


@pytest.mark.parametrize("wanted", ["eth0", "eth1", "10.77.1.0/24", "^eth0"])
def test_the_interface_that_is_named_carries_the_data(wanted: str) -> None:
    chosen = 0 if wanted == "eth0" else 1
    with network(2, nics=2, container_bridge=True) as hosts:
        values = run_ranks_on(hosts, [1, 1], add, env={"SMDDP_INTERFACE": wanted})
        assert values == [3.0] * 2
        for host in hosts:
            sent = sent_by(host)
            assert sent[chosen] > PAYLOAD_BYTES
            assert sent[1 - chosen] < PAYLOAD_BYTES / 10  # the rendezvous is on eth0 at any rate


def add_for_long(rank: int, world_size: int) -> float:
    import numpy as np

    from smdistributed import collectives

    with collectives.init(timeout_s=60) as comm:
        array = np.full(16 * COUNT, rank + 1, np.float32)
        for _ in range(4):
            comm.all_reduce(array)
        return float(array.max())


@pytest.mark.parametrize("per_host", [1, 2])
def test_several_nics_are_used_together(per_host: int) -> None:
    with network(2, nics=2, gbit=1, container_bridge=True) as hosts:
        ranks = 2 * per_host
        values = run_ranks_on(hosts, [per_host] * 2, add_for_long)
        assert values == [ranks * (ranks + 1) / 2 * ranks**3] * ranks
        for host in hosts:
            assert all(sent > 16 * PAYLOAD_BYTES for sent in sent_by(host))


def test_a_second_nic_that_leads_nowhere_is_done_without() -> None:
    """Its connections cannot be made: that costs a warning, and no time."""
    with network(2, nics=2, gbit=1) as hosts:
        hosts[0].silence(nic=1)
        assert run_ranks_on(hosts, [1, 1], add_for_long) == [24.0] * 2
        for host in hosts:
            assert sent_by(host)[0] > 4 * 16 * PAYLOAD_BYTES


def test_several_connections_may_share_a_nic() -> None:
    with network(2, gbit=1) as hosts:
        values = run_ranks_on(hosts, [1, 1], add_for_long, env={"SMDDP_TCP_CONNECTIONS": "3"})
        assert values == [24.0] * 2


def measured(rank: int, world_size: int) -> tuple[float, float]:
    from smdistributed import collectives

    with collectives.init(timeout_s=60) as comm:
        return comm.link


@pytest.mark.parametrize("gbit", [0.1, 1.0])
def test_ranks_agree_on_what_the_link_gives(gbit: float) -> None:
    """Of the slowest host: what a bucket lets through at once is too much, busy processors less."""
    with network(3, gbit=[2, gbit, 2]) as hosts:
        links = run_ranks_on(hosts, [2, 1, 1], measured)
    assert len(set(links)) == 1
    assert 0.1 * gbit < 8e-9 * links[0][1] < 2.5 * gbit


def test_hosts_with_several_nics_need_no_setting() -> None:
    with network(2, nics=2) as hosts:
        assert run_ranks_on(hosts, [1, 1], add) == [3.0] * 2
        assert all(sum(sent_by(host)) > PAYLOAD_BYTES for host in hosts)
