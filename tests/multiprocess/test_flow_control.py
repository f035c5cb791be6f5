# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank is sent before it has asked for it, and what that costs it.

How frames are matched and windows kept is tested in `tests/native/transport/flow_test.cc`.

Source: docs/architecture.md, "Flow control"; `native/transport/flow.h`.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from engine_ranks import Heard, must_hear
from harness import run_ranks
from machine_speed import scaled
from message_ranks import take

TRANSPORTS = ("shm", "tcp")
MIB = 1 << 20


def _resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sends_that_nobody_asks_for(rank: int, world_size: int) -> tuple[Heard, int]:
    """Rank 0 sends 50 times 16 MiB, one after the other; rank 1 waits in a barrier."""
    from smdistributed import collectives

    comm = collectives.init()
    message = np.ones(16 * MIB, dtype=np.uint8)
    before = _resident()

    def call() -> None:
        for tag in range(50 if rank == 0 else 0):
            comm.send(message, 1, tag, timeout_s=scaled(2.0))
        comm.barrier()

    return must_hear(call), _resident() - before


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_long_send_returns_when_it_is_matched(transport: str) -> None:
    env = {"SMDDP_TRANSPORT": transport}
    (sender, _), (receiver, grown) = run_ranks(sends_that_nobody_asks_for, 2, env=env)
    assert sender.type_name == receiver.type_name == "CollectiveTimeoutError"
    assert "send to rank 1 (uint8 x 16777216, tag 0)" in sender.text
    assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB more"


def many_short_ones(rank: int, world_size: int) -> int:
    """Sent without a receive, until they block; then taken, in another order of tags."""
    from smdistributed import collectives

    comm = collectives.init()
    each, tags = 4096, 3000
    numbers = np.arange(each, dtype=np.uint8)
    before = _resident()
    grown = 0
    if rank == 0:
        works = [comm.send(numbers + tag % 251, 1, tag, async_op=True) for tag in range(tags)]
        comm.barrier()
        for work in works:
            work.wait()
    else:
        comm.barrier()  # what comes meanwhile is not what it waits for
        grown = _resident() - before
        for tag in reversed(range(tags)):
            got = np.zeros(each, dtype=np.uint8)
            comm.recv(got, 0, tag)
            assert (got == numbers + tag % 251).all(), tag
    comm.close()
    return grown


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_flood_stays_with_its_sender(transport: str) -> None:
    _, grown = run_ranks(many_short_ones, 2, env={"SMDDP_TRANSPORT": transport})
    # 12 MiB were sent, of which a window of 1 MiB unasked; the rest is what the first calls touch.
    assert grown < 8 * MIB, f"{grown / MIB:.1f} MiB more"


def collective_in_a_flood(rank: int, world_size: int) -> None:
    """Collectives go on while long messages wait for their receives, both ways."""
    from smdistributed import collectives

    comm = collectives.init()
    size = 3 * MIB + 7
    peer = 1 - rank
    sent = [np.full(size, 10 * rank + tag, dtype=np.uint8) for tag in range(8)]
    works = [comm.send(data, peer, tag, async_op=True) for tag, data in enumerate(sent)]
    for count in (1, 1000, 500_000):
        total = np.full(count, rank + 1.0, dtype=np.float32)
        comm.all_reduce(total)
        assert (total == 3.0).all()
    for tag in reversed(range(8)):
        got = np.zeros(size, dtype=np.uint8)
        comm.recv(got, peer, tag)
        assert (got == 10 * peer + tag).all(), tag
    for work in works:
        work.wait()
    comm.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_collectives_go_on_meanwhile(transport: str) -> None:
    run_ranks(collective_in_a_flood, 2, env={"SMDDP_TRANSPORT": transport})


def messages_without_end(rank: int, world_size: int) -> Any:
    """Posted until there are too many of them; what was posted comes, in order."""
    from smdistributed import collectives

    comm = collectives.init()
    native = comm._native
    body = np.arange(MIB, dtype=np.uint8)
    if rank == 0:
        posted = 0

        def post_all() -> None:
            nonlocal posted
            while posted < 200:
                native.post_message(1, bytes([posted]), [(body.ctypes.data, body.nbytes)])
                posted += 1

        heard = must_hear(post_all)
        comm.barrier()
        for _ in range(posted):
            take(native)
        native.post_message(1, b"end", [])
        result: Any = (heard, posted)
    else:
        before = _resident()
        comm.barrier()
        grown = _resident() - before
        taken = 0
        while (message := take(native)).header != b"end":
            assert message.header == bytes([taken])
            assert (np.frombuffer(message, dtype=np.uint8) == body).all()
            native.post_message(0, b"", [])
            taken += 1
        result = (grown, taken)
    comm.barrier()
    comm.close()
    return result


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_wait_with_their_sender_up_to_a_limit(transport: str) -> None:
    env = {"SMDDP_TRANSPORT": transport, "SMDDP_MESSAGE_LIMIT_MB": "50"}
    (heard, posted), (grown, taken) = run_ranks(messages_without_end, 2, env=env)
    assert "SMDDP_MESSAGE_LIMIT_MB" in heard.text
    assert 40 <= posted <= 120
    assert posted == taken
    assert grown < 64 * MIB
