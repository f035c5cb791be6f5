# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks tell each other while a group is formed, with ranks as threads on one store."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from machine_speed import scaled
from torch.distributed import HashStore

from smdistributed.dataparallel.exceptions import SMDDPTimeoutError
from smdistributed.dataparallel.torch.exchange import store_exchange

LONG_S = scaled(60.0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_every_rank_has_what_every_rank_said(world_size: int) -> None:
    store = HashStore()

    def exchange(rank: int) -> list[list[bytes]]:
        say = store_exchange(store, rank, world_size, LONG_S)
        return [say(key, f"{key}{rank}".encode()) for key in ("first", "second")]

    with ThreadPoolExecutor(world_size) as pool:
        for found in pool.map(exchange, range(world_size)):
            assert found == [
                [f"{key}{rank}".encode() for rank in range(world_size)]
                for key in ("first", "second")
            ]


def test_all_are_told_who_is_missing_when_rank_0_gives_up() -> None:
    """Before it ends, for its process may be the one that serves the store."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        patient = pool.submit(store_exchange(store, 2, 3, LONG_S), "identity", b"c")
        while store.num_keys() < 2 and not patient.done():  # until it has come
            time.sleep(0.01)
        impatient = pool.submit(store_exchange(store, 0, 3, 0.5), "identity", b"a")
        for told in (impatient, patient):
            with pytest.raises(SMDDPTimeoutError, match=r"rank 0 .*ranks \[1\] of 3 did not come"):
                told.result(timeout=LONG_S / 2)
