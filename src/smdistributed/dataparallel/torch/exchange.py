# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's bootstrap exchange over a torch `Store`.

An exchange gives every rank what every rank said. Rank 0 collects and publishes one value, so that
n ranks cost the store n small writes, one read of n keys and n - 1 reads of the collected value:
O(n) requests for the group instead of O(n^2). Per exchange and rank: 1 write, 1 read, 1 counter.
Rank 0 returns last: its process usually serves the store, and may end soon after.

Keys, under the prefix that torch gave the group:

    smddp/generation          how many ranks have ever started here: `value // n` tells apart groups
                              that are made again over one store (destroy, then init)
    smddp/<g>/<key>/<rank>    what one rank said, and how many ranks it believes in
    smddp/<g>/<key>/all       what all said, framed by `pack`
    smddp/<g>/<key>/read      how many have read it
    smddp/<g>/<key>/done      set by the last reader; rank 0 then deletes all four
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPPeerLost,
    SMDDPTimeoutError,
)

__all__ = ["Exchange", "NotedExchange", "pack", "store_exchange", "unpack"]

Exchange = Callable[[str, bytes], list[bytes]]

_LENGTH = struct.Struct("<Q")
# Seconds in which the other ranks can read who is missing, before rank 0 raises it.
_LAST_WORDS_S = 1.0


def store_exchange(store: Store, rank: int, world_size: int, timeout_s: float) -> Exchange:
    """Returns `exchange(key, data)`: every rank's data, by rank; all ranks must call it.

    Args:
        store: shared by exactly the ranks of one group (torch passes a prefixed one).
        timeout_s: seconds to wait for the slowest rank in each exchange.

    Raises (the returned function):
        SMDDPConfigInvalid: ranks believe in groups of different sizes, rank 0 not in the largest;
            the same on all of them.
        SMDDPTimeoutError: some rank did not come; the message names all that are missing.
        SMDDPPeerLost: the store is gone, usually because the process that serves it ended.
    """
    generation: int | None = None

    def exchange(key: str, data: bytes) -> list[bytes]:
        nonlocal generation
        if world_size == 1:
            return [data]
        try:
            if generation is None:
                generation = (store.add("smddp/generation", 1) - 1) // world_size
            return _exchange(store, f"smddp/{generation}/{key}", data, rank, world_size, timeout_s)
        except RuntimeError as error:  # torch's store errors; ours derive from other built-ins
            raise SMDDPPeerLost(
                f"the rendezvous store failed in exchange '{key}' of rank {rank} ({error});"
                " expected it to answer until all ranks have met. Read the log of the rank that"
                " serves it (usually rank 0) first."
            ) from error

    return exchange


class NotedExchange:
    """An exchange whose first round also carries a note from each rank, at no round trip more.

    Args:
        exchange: carries both.
        note: what this rank tells the others; all ranks must use this class, or none.

    Attributes:
        notes: every rank's note, by rank. This rank's alone until the first round, which a group
            of one rank may never need.
    """

    def __init__(self, exchange: Exchange, note: bytes) -> None:
        self._exchange = exchange
        self._is_first = True
        self.notes = [note]

    def __call__(self, key: str, data: bytes) -> list[bytes]:
        """As the exchange this one was made of."""
        if not self._is_first:
            return self._exchange(key, data)
        self._is_first = False
        pairs = [unpack(both) for both in self._exchange(key, pack([*self.notes, data]))]
        self.notes = [note for note, _ in pairs]
        return [theirs for _, theirs in pairs]


def _exchange(
    store: Store, prefix: str, data: bytes, rank: int, world_size: int, timeout_s: float
) -> list[bytes]:
    spoken = [f"{prefix}/{peer}" for peer in range(world_size)]
    everything, read, done = (f"{prefix}/{name}" for name in ("all", "read", "done"))
    _set(store, spoken[rank], pack([str(world_size).encode(), data]))
    if rank == 0:
        try:
            _wait(store, spoken, spoken, rank, timeout_s)
        except SMDDPTimeoutError:
            parts = [store.get(name) if store.check([name]) else b"" for name in spoken]
            _set(store, everything, pack(parts))
            time.sleep(_LAST_WORDS_S)  # this process may serve the store, and is about to end
            raise
        collected = _read(store, spoken)
        _set(store, everything, pack(collected))
        _wait(store, [done], spoken, rank, timeout_s)
        for name in (*spoken, everything, read, done):
            store.delete_key(name)
        return _agreed(collected)
    _wait(store, [everything], spoken, rank, timeout_s)
    collected = unpack(store.get(everything))
    missing = [peer for peer, part in enumerate(collected) if not part]
    if missing:
        raise _not_formed("rank 0 reached its timeout", _absent(missing, spoken))
    # The rest is for rank 0; a store that vanishes now took nothing from us.
    with contextlib.suppress(RuntimeError):
        if store.add(read, 1) == len(collected) - 1:  # as rank 0 counts
            _set(store, done, b"")
    return _agreed(collected)


def _agreed(collected: list[bytes]) -> list[bytes]:
    """What the ranks said, if all believe in one size of the group."""
    pairs = [unpack(both) for both in collected]
    sizes = [int(size) for size, _ in pairs]
    odd = [rank for rank, size in enumerate(sizes) if size != sizes[0]]
    if odd:
        raise SMDDPConfigInvalid(
            f"rank {odd[0]} was started as one of {sizes[odd[0]]} ranks, and rank 0 as one of"
            f" {sizes[0]}; expected the same number on all ranks. Correct WORLD_SIZE (or the"
            " argument world_size) there, or let the launcher set it; and look whether ranks of"
            " two jobs have met at one MASTER_ADDR and MASTER_PORT."
        )
    return [data for _, data in pairs]


def _wait(store: Store, names: list[str], spoken: list[str], rank: int, timeout_s: float) -> None:
    start = time.monotonic()
    try:
        store.wait(names, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        if time.monotonic() - start < 0.9 * timeout_s:
            raise
        missing = [peer for peer, name in enumerate(spoken) if not store.check([name])]
        if missing:
            who = _absent(missing, spoken)
        elif rank:
            who = "rank 0 came and then stalled"
        else:
            who = "all came, and then a rank stalled"
        raise _not_formed(f"rank {rank} reached its timeout of {timeout_s:g} s", who) from error


def _absent(missing: list[int], spoken: list[str]) -> str:
    return f"ranks {missing} of {len(spoken)} did not come"


def _not_formed(what: str, who: str) -> SMDDPTimeoutError:
    return SMDDPTimeoutError(
        f"{what} while the group was being formed; {who}. Expected all of them to create the same"
        " group in the same order. Look at their logs, or raise the timeout."
    )


def _set(store: Store, name: str, data: bytes) -> None:
    store.set(name, data)  # type: ignore[arg-type] # torch's stub forgets bytes


def _read(store: Store, names: list[str]) -> list[bytes]:
    if store.has_extended_api():  # type: ignore[attr-defined]
        return list(store.multi_get(names))
    return [store.get(name) for name in names]


def pack(parts: list[bytes]) -> bytes:
    """Several values as one."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    """What `pack` was given."""
    parts = []
    offset = 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        parts.append(bytes(data[offset : offset + length]))
        offset += length
    return parts
