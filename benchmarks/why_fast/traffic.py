# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How many bytes a rank reads and writes in memory, for each byte of an all_reduce's buffer.

Counted from what the algorithms do, not measured. Caches hold some of it: what is written into a
staging buffer and read again soon never reaches the memory. Words: S is the buffer of a rank, n the
number of ranks, and s = (n - 1) / n the share of S that belongs to the other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One thing that is done with the data; `read` and `written` are multiples of S."""

    name: str
    read: float
    written: float


def shared(ranks: int) -> list[Part]:
    """Every rank reads its share of all buffers and writes the result into all of them."""
    del ranks  # n shares of S / n
    return [Part("reduce", 1.0, 1.0)]


def staged(ranks: int) -> list[Part]:
    """Copied into staging memory, reduced from there, copied out of it."""
    others = (ranks - 1) / ranks
    return [
        Part("copy in", others, others),
        # The own share, and what the others have copied in; the sums go into the own buffer and
        # into staging memory.
        Part("reduce", 1.0, 2.0 / ranks),
        Part("copy out", others, others),
    ]


def ring_over_sockets(ranks: int) -> list[Part]:
    """The bandwidth-optimal ring of n - 1 steps, twice, over sockets of one host.

    Sending copies into the kernel's memory, receiving copies out of it. In the first half every
    chunk is received into a buffer of its own and added to the user's; in the second half chunks
    go where they belong.
    """
    others = (ranks - 1) / ranks
    return [
        Part("send: into the kernel", 2 * others, 2 * others),
        Part("receive: out of the kernel", 2 * others, 2 * others),
        Part("reduce", 2 * others, others),
    ]


ALGORITHMS = {
    "shared buffers\n(smddp)": shared,
    "staged\n(smddp)": staged,
    "ring over sockets\n(Gloo)": ring_over_sockets,
}
