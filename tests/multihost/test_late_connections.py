# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Connections that are first needed while the network is away for a moment."""

from __future__ import annotations

import time
from pathlib import Path

from tests.multihost.hosts import network
from tests.multihost.placement import Milestones, running_ranks_on

# Longer than it takes a kernel to find a neighbour unreachable, shorter than a host may be silent.
AWAY_S = 4.5


def send_across(rank: int, world_size: int, folder: str) -> int:
    """Rank 1 has no connection with rank 2 until it sends: failures are told to and by rank 3."""
    import numpy as np

    from smdistributed import collectives

    milestones = Milestones(folder)
    with collectives.init(timeout_s=60) as comm:
        milestones.reach("made", rank)
        while not Path(folder, "away").exists():
            time.sleep(0.01)
        array = np.full(1000, rank)
        if rank == 1:
            comm.send(array, 2)
        elif rank == 2:
            comm.recv(array, 1)
        while not Path(folder, "healed").exists():
            time.sleep(0.01)
        comm.barrier()
        return int(array[0])


def test_a_connection_is_tried_for_as_long_as_a_host_may_be_silent(tmp_path: Path) -> None:
    milestones = Milestones(str(tmp_path))
    with (
        network(2, gbit=1) as hosts,
        running_ranks_on(hosts, [2, 2], send_across, str(tmp_path), deadline_s=90) as job,
    ):
        milestones.wait_for("made", range(4), job)
        hosts[1].unplug()
        Path(tmp_path, "away").touch()
        time.sleep(AWAY_S)
        hosts[1].heal()
        Path(tmp_path, "healed").touch()
        assert job.result() == [0, 1, 1, 3]
