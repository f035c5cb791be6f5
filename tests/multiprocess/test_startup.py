# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The start of a job and its end: what is in the way is told in words, or does not matter.

Source: Communicator's docstring.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from engine_ranks import TIMEOUT_S
from harness import run_ranks
from machine_speed import scaled
from startup_ranks import (
    few_descriptors,
    garbage_at_the_listening_port,
    garbage_at_the_rendezvous,
    joins,
    joins_together,
    joins_twice,
    uses_after_close,
    without_dev_shm,
)

TRANSPORTS = ("shm", "tcp")
WORLD_SIZE = 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_second_init_gives_a_second_communicator(transport: str) -> None:
    run_ranks(joins_twice, WORLD_SIZE, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("world_size", [1, 2])
def test_use_after_close(world_size: int) -> None:
    for errors in run_ranks(uses_after_close, world_size):
        for told in errors:
            assert told.type_name == "ConfigurationError", told
            assert "is closed" in told.text
            assert "Make the group again" in told.text


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        told = run_ranks(joins, 2, env={"MASTER_PORT": str(port)}, deadline_s=30)
    assert told[0].type_name == "ConfigurationError", told[0]
    assert f"cannot listen on port {port}" in told[0].text
    assert "set MASTER_PORT to another port" in told[0].text
    assert told[1] is not None, "rank 1 must not take the squatter for rank 0"
    assert str(port) in told[1].text, told[1]


def test_an_unreachable_master_is_named() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nobody else gets it, and nobody listens there
        port = reserved.getsockname()[1]
        only_rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
        start = time.monotonic()
        (told,) = run_ranks(joins, 1, env=only_rank_1, deadline_s=30)
    assert told.type_name == "PeerLostError", told
    assert f"127.0.0.1:{port}" in told.text
    assert told.at_s - start > 2.5, "gave up before the timeout of 3 s"


def test_a_rank_that_never_starts_is_named(tmp_path: Path) -> None:
    env = {"WORLD_SIZE": "3"}
    told = run_ranks(joins_together, 2, str(tmp_path), 2, env=env, deadline_s=30)
    for one in told:
        assert one.type_name == "CollectiveTimeoutError", one
        assert "rank(s) 2 never connected" in one.text, one.text


def test_garbage_at_the_listening_port_harms_nobody() -> None:
    pestered = run_ranks(garbage_at_the_listening_port, WORLD_SIZE, env={"SMDDP_TRANSPORT": "tcp"})
    assert min(pestered) >= 1, "every rank listens when it uses TCP"


def test_garbage_at_the_rendezvous_harms_nobody() -> None:
    run_ranks(garbage_at_the_rendezvous, WORLD_SIZE)


@pytest.mark.parametrize("how", ["read-only", "tiny"])
def test_dev_shm_is_not_needed(how: str) -> None:
    used = run_ranks(without_dev_shm, 2, how)
    if used[0].startswith("not permitted"):
        pytest.skip(f"a mount namespace of one's own is {used[0]}; run this test as root")
    assert used == ["shm", "shm"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_running_out_of_descriptors_is_told(transport: str, tmp_path: Path) -> None:
    """With none to spare up to more than enough: an error in words, or success; never a hang."""
    outcomes: list[Any] = []
    for spare in (0, 2, 4, 5, 6, 7, 8, 9, 10, 12, 40):
        env = {"SMDDP_TRANSPORT": transport}
        timeout_s = TIMEOUT_S if spare == 40 else scaled(2.0)  # there it must not be needed
        arguments = (spare, timeout_s, str(tmp_path))
        told = run_ranks(few_descriptors, 2, *arguments, env=env, deadline_s=30)
        outcomes.append((spare, told))
    assert outcomes[-1] == (40, [None, None])
    failed = [told for _, told in outcomes if any(told)]
    assert failed, "zero descriptors to spare cannot have worked"
    for told in failed:
        texts = [one.text for one in told if one is not None]
        # The second, where a region cannot be passed on: SMDDP_TRANSPORT=shm rules out TCP instead.
        helpful = ("Too many open files", "cannot share memory")
        assert any(part in text for text in texts for part in helpful), "\n".join(texts)
        assert not any("InternalError" in one.bases for one in told if one is not None), told
