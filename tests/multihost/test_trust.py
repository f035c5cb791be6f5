# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens and TLS between hosts. Source: docs/security.md."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from engine_ranks import Heard, heard, meet_by_files
from job_certificates import make_authority, make_files, settings_of
from machine_speed import scaled

from tests.multihost.hosts import Host
from tests.multihost.placement import run_ranks_on

WAIT_S = 3.0
TIMEOUT_S = scaled(30.0)


def joins_with(rank: int, world_size: int, tokens: tuple[str, ...], folder: str) -> Heard | None:
    from smdistributed import collectives

    os.environ["SMDDP_TOKEN"] = tokens[rank]
    meet_by_files(folder, rank, world_size)
    return heard(lambda: collectives.init(timeout_s=WAIT_S).close())


def test_the_host_with_another_token_is_named_to_those_who_wait(
    four_hosts: list[Host], tmp_path: Path
) -> None:
    told = run_ranks_on(four_hosts, [1, 1, 1], joins_with, ("a", "a", "b"), str(tmp_path))
    assert told[2].type_name == "ConfigurationError", told[2]
    stranger = re.escape(four_hosts[2].address)
    for each in told[:2]:
        assert each.type_name == "CollectiveTimeoutError", each
        assert re.search(
            rf"from {stranger}:\d+ that claims to be rank 2 was refused: it does not know the job's"
            " token",
            each.text,
        ), each.text


def reduces(rank: int, world_size: int, settings: tuple[dict[str, str], ...]) -> Heard | None:
    from smdistributed import collectives

    os.environ.update(settings[rank])

    def reduce() -> None:
        with collectives.init(timeout_s=TIMEOUT_S) as comm:
            array = np.arange(100_003, dtype=np.float64) + rank
            comm.all_reduce(array)
            expected = np.arange(100_003) * world_size + sum(range(world_size))
            assert np.array_equal(array, expected)

    return heard(reduce)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_hosts_with_certificates_of_their_own_meet_and_reduce(
    four_hosts: list[Host], tmp_path: Path
) -> None:
    authority = make_authority(tmp_path / "job")
    files = [make_files(authority, host.name) for host in four_hosts[:2]]
    settings = tuple(settings_of(files[host]) for host in (0, 0, 1, 1))
    told = run_ranks_on(four_hosts, [2, 2], reduces, settings, env={"SMDDP_TOKEN": "t"})
    assert told == [None] * 4
    # One host without: nobody takes part in the clear by mistake.
    alone = tuple(settings_of(files[0]) if rank < 2 else {} for rank in range(4))
    told = run_ranks_on(
        four_hosts, [2, 2], joins_in, alone, str(tmp_path), env={"SMDDP_TOKEN": "t"}
    )
    for each in told[2:]:
        assert each.type_name == "ConfigurationError", each
        assert "uses TLS and rank" in each.text
    for each in told[:2]:
        assert each.type_name == "CollectiveTimeoutError", each
        assert "was refused: it has no TLS and rank 0 has" in each.text


def joins_in(
    rank: int, world_size: int, settings: tuple[dict[str, str], ...], folder: str
) -> Heard | None:
    from smdistributed import collectives

    os.environ.update(settings[rank])
    meet_by_files(folder, rank, world_size)
    return heard(lambda: collectives.init(timeout_s=WAIT_S).close())
