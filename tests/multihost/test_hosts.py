# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Test hosts are what they claim to be: apart from one another, and gone afterwards."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import run_ranks, run_script
from machine_speed import scaled

from tests.multihost import namespaces as network_namespaces
from tests.multihost.hosts import HEADER_CAP, Host, network
from tests.multihost.namespaces import CommandFailed, Namespaces, namespaces, why_not
from tests.multihost.placement import Milestones, places_on, run_ranks_on, running_ranks_on

ROOT = Path(__file__).resolve().parents[2]
MANY_BYTES = 1 << 20
TIMEOUT_S = scaled(60.0)
# Where nobody is expected to answer, and where somebody is: a link takes a while to come up.
SILENT_S, PATIENCE_S = 1.0, scaled(20.0)


def everyone_as_seen_by(rank: int, world_size: int) -> tuple[str, list[tuple[str, str]]]:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        seen = [(peer["host"], peer["transport"]) for peer in comm.topology()]
        return socket.gethostname(), seen


def test_ranks_share_memory_within_a_host_and_use_tcp_between_hosts(
    four_hosts: list[Host],
) -> None:
    """Source: docs/architecture.md, "How ranks become a group": locality is proven."""
    names = ["host-0", "host-0", "host-1", "host-2"]
    found = run_ranks_on(four_hosts, [2, 1, 1], everyone_as_seen_by)
    for rank, (name, seen) in enumerate(found):
        assert name == names[rank]
        for peer, (host, transport) in enumerate(seen):
            is_same_host = names[peer] == names[rank]
            expected = "self" if peer == rank else "shm" if is_same_host else "tcp"
            assert (host, transport) == (names[peer], expected)


def test_scripts_find_their_place_in_the_environment(
    four_hosts: list[Host], tmp_path: Path
) -> None:
    script = tmp_path / "who.py"
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]
    script.write_text(f"import os, socket\nprint(socket.gethostname(), *map(os.getenv, {names}))\n")
    outcomes = run_script([str(script)], 3, places=places_on(four_hosts, [1, 2]))
    assert [outcome.output.strip() for outcome in outcomes] == [
        "host-0 0 3 0 1 0 10.77.0.1",
        "host-1 1 3 0 2 1 10.77.0.1",
        "host-1 2 3 1 2 1 10.77.0.1",
    ]


def connects(rank: int, world_size: int, address: str, patience_s: float) -> int | None:
    """0, the errno of a connection to a port where nobody listens, or None for no answer at all."""
    with socket.socket() as probe:
        probe.settimeout(patience_s)
        try:
            return probe.connect_ex((address, 9))
        except TimeoutError:
            return None


def answer(hosts: list[Host], patience_s: float) -> int | None:
    """What the first host hears of the second."""
    places = places_on(hosts, [1] * len(hosts))[:1]
    found = run_ranks(connects, 1, hosts[1].address, patience_s, places=places)[0]
    return None if found in (errno.EAGAIN, errno.ETIMEDOUT) else found


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    with network(2, gbit=1) as hosts:
        yield hosts


REACHED = errno.ECONNREFUSED  # by the host itself, on whose port 9 nobody listens


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (lambda a, b: b.unplug(), {None, errno.EHOSTUNREACH}),
        (lambda a, b: a.take_down(), {errno.ENETUNREACH}),
        (lambda a, b: b.silence(), {None, errno.EHOSTUNREACH}),
        (lambda a, b: a.lose_packets_to(b), {None}),
        (lambda a, b: a.refuse(b), {errno.EHOSTUNREACH}),
    ],
    ids=["unplug", "take_down", "silence", "lose_packets_to", "refuse"],
)
def test_a_fault_parts_two_hosts_until_it_is_healed(
    fault: Callable[[Host, Host], None], found: set[Any], two_hosts: list[Host]
) -> None:
    assert answer(two_hosts, PATIENCE_S) == REACHED
    fault(two_hosts[0], two_hosts[1])
    assert answer(two_hosts, SILENT_S) in found
    for host in two_hosts:
        host.heal()
    assert answer(two_hosts, PATIENCE_S) == REACHED


def shaper(where: Namespaces, interface: str) -> dict[str, Any]:
    """Statistics of the interface's queue: "kind", "bytes", "drops", and the rate in "options"."""
    text = where.run(f"tc -json -statistics qdisc show dev {interface}")
    found: dict[str, Any] = json.loads(text)[0]
    return found


def test_links_have_rates_of_their_own_that_can_change() -> None:
    def rates(hosts: list[Host]) -> list[int]:
        return [shaper(host.inside, "eth0")["options"]["rate"] * 8 for host in hosts]

    with network(2, gbit=[1, 0.1]) as hosts:
        assert rates(hosts) == [1_000_000_000, 100_000_000]
        hosts[0].set_rate(0.5)
        assert rates(hosts) == [500_000_000, 100_000_000]


@pytest.mark.parametrize(("both_ways", "kind"), [(False, "noqueue"), (True, "tbf")])
def test_the_ports_of_the_switch_shape_on_request(both_ways: bool, kind: str) -> None:
    with network(2, gbit=1, both_ways=both_ways) as hosts:
        for host in hosts:
            assert shaper(host.switch, host.nics[0].port)["kind"] == kind


def sum_of_bytes(rank: int, world_size: int, size: int) -> None:
    import numpy as np

    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        array = np.full(size // 4, rank + 1, np.float32)
        comm.all_reduce(array)
        assert set(array.tolist()) == {3.0}


def test_a_port_with_a_shallow_queue_loses_packets() -> None:
    """And TCP repeats them: the sum is right all the same."""
    with network(2) as hosts:
        receiver = hosts[1]
        receiver.set_rate(0.5, both_ways=True, port_queue_bytes=40_000)
        run_ranks_on(hosts, [1, 1], sum_of_bytes, 8 * MANY_BYTES)
        assert shaper(receiver.switch, receiver.nics[0].port)["drops"] > 0


def test_a_link_counts_the_headers_of_every_frame(two_hosts: list[Host]) -> None:
    """So `HEADER_CAP` of its rate is the most that data can have."""
    assert round(HEADER_CAP, 3) == 0.956
    run_ranks_on(two_hosts, [1, 1], sum_of_bytes, MANY_BYTES)
    for host in two_hosts:
        assert shaper(host.inside, "eth0")["bytes"] > MANY_BYTES / HEADER_CAP


def test_processes_left_on_a_host_end_with_it() -> None:
    with namespaces("short-lived") as inside:
        left = subprocess.Popen([*inside.prefix(), "sleep", "600"])
        while os.readlink(f"/proc/{left.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert left.poll() is None
    assert left.wait(scaled(20.0)) == -signal.SIGKILL


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_hosts_whose_maker_is_killed(end: signal.Signals) -> None:
    program = textwrap.dedent(
        """
        import sys, time
        from tests.multihost.hosts import network
        with network(2) as hosts:
            print(*(host.inside.pid for host in hosts), hosts[0].switch.pid, flush=True)
            time.sleep(600)
        """
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert maker.stdout is not None
    with maker.stdout:
        holders = [int(word) for word in maker.stdout.readline().split()]
    assert len(holders) == 3
    watched = [os.pidfd_open(pid) for pid in holders]
    maker.send_signal(end)
    maker.wait(scaled(20.0))
    for descriptor in watched:
        with contextlib.closing(os.fdopen(descriptor)) as file:
            assert select.select([file], [], [], scaled(20.0))[0], "a holder outlives its maker"


def test_what_is_refused_is_said_with_the_command(two_hosts: list[Host]) -> None:
    with pytest.raises(CommandFailed, match=r"`ip link set dev eth7 down` was refused: .*eth7"):
        two_hosts[0].inside.run("ip link set dev eth7 down")


def test_ranks_for_more_hosts_than_there_are_are_refused(two_hosts: list[Host]) -> None:
    with pytest.raises(ValueError, match="ranks for 3 hosts, and there are 2; make more hosts"):
        places_on(two_hosts, [1, 1, 1])


def test_what_is_missing_is_said_with_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    reason = why_not.__wrapped__()
    assert reason is not None
    assert "tc is not there" in reason
    assert "apt-get install iproute2" in reason


def test_what_the_system_refuses_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_namespaces, "_TRIAL", "echo no such luck >&2; exit 1")
    reason = why_not.__wrapped__()
    assert reason is not None
    assert "refused (no such luck)" in reason
    assert "Run as root" in reason


def sum_until_it_fails(rank: int, world_size: int, milestones: Milestones) -> str:
    """The text of the error that ends a rank which adds without end."""
    import numpy as np

    from smdistributed import collectives
    from smdistributed._common.errors import SmdistributedError

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        array = np.zeros(100_000, np.float32)
        comm.all_reduce(array)
        milestones.reach("adding", rank)
        try:
            while True:
                comm.all_reduce(array, timeout_s=3)
        except SmdistributedError as error:
            return str(error)


def test_a_link_can_fail_under_running_ranks(two_hosts: list[Host], tmp_path: Path) -> None:
    milestones = Milestones(str(tmp_path))
    with running_ranks_on(two_hosts, [2, 2], sum_until_it_fails, milestones) as job:
        milestones.wait_for("adding", range(4), job)
        two_hosts[1].silence()
        assert all(job.result())
