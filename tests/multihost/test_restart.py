# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A worker dies, torchrun starts all workers again, and the training ends as if nothing had been.

Source: our choice; docs/faults.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from launchers import clean_environment
from machine_speed import scaled

from tests.multihost.hosts import Host, network
from tests.multihost.placement import run_ranks_on

SCRIPT = Path(__file__).with_name("restart_training.py")
DEADLINE_S = 200.0
KILLED_RANK, KILLED_STEP, LAST_CHECKPOINT = 3, 7, 6
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    with network(2, gbit=1) as hosts:
        yield hosts


def rendezvous_of(kind: str, host: Host, first: Host) -> list[str]:
    """Options of torchrun for how the agents of all hosts meet on the first one."""
    if kind == "static":
        where = ["--master-addr", first.address, "--master-port", "29500"]
        return [*where, "--node-rank", str(host.index)]
    is_first = str(host is first).lower()
    return [
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first.address}:29500"),
        *("--rdzv-id", "restart", "--rdzv-conf", f"is_host={is_first}"),
        *("--local-addr", host.address),
    ]


def train_under_torchrun(
    hosts: Sequence[Host], kind: str, folder: Path, *options: str
) -> list[str]:
    """Run the script with two workers on each host; the output of every agent and its workers."""
    agents = []
    for host in hosts:
        command = [
            *(*TORCHRUN, "--nnodes", str(len(hosts)), "--nproc-per-node", "2"),
            *("--max-restarts", "2", *rendezvous_of(kind, host, hosts[0])),
            *(str(SCRIPT), str(folder), *options),
        ]
        agents.append(
            subprocess.Popen(
                host.command(command),
                env=clean_environment({"SMDDP_TOKEN": "7" * 64}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                process_group=0,
            )
        )
    try:
        outputs = [agent.communicate(timeout=scaled(DEADLINE_S))[0] for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.communicate()
    for agent, output in zip(agents, outputs, strict=True):
        assert agent.returncode == 0, output
    return outputs


@pytest.mark.parametrize("kind", ["c10d", pytest.param("static", marks=pytest.mark.slow)])
def test_training_ends_with_the_weights_of_an_undisturbed_one(
    kind: str, two_hosts: list[Host], tmp_path: Path
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    run_ranks_on(two_hosts, [2, 2], f"{SCRIPT}:main_on_rank", [str(undisturbed)])
    fault = ["--kill-rank", str(KILLED_RANK), "--kill-step", str(KILLED_STEP)]
    outputs = train_under_torchrun(two_hosts, kind, killed, *fault)
    for rank in range(4):
        # Two lives: one from the start, one from the last checkpoint before the fault. More if
        # the agents, which each find out by themselves, do not start their workers together.
        lives = (killed / f"lives-{rank}").read_text().split()
        assert lives[:2] == ["0", str(LAST_CHECKPOINT)], outputs
        expected = torch.load(undisturbed / f"weights-{rank}.pt")
        found = torch.load(killed / f"weights-{rank}.pt")
        for name, weight in expected.items():
            assert torch.equal(found[name], weight), f"{name} on rank {rank}"
    assert not list(killed.glob("*.part"))
