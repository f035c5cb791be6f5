# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Input of every rank, and the expected results, computed by one process without communication.

A rank's data repeat a table of `PERIOD` numbers, so results are computed on tables, whatever the
size of the buffers. The period is prime and odd: a part that lands at a wrong place is seen.

Numbers are 1, 2 or 3 (of an average: 12, 24 or 36). All sums, products and averages over up to 4
ranks are then whole numbers up to 144, exact in every type, in whatever order they are formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

PERIOD = 4093
MAX_RANKS = 4
_KNUTH = 2_654_435_761  # of multiplicative hashing


def table(seed: int, rank: int, op: str = "SUM") -> torch.Tensor:
    """One period of the data of `rank`: int64 of shape `[PERIOD]`.

    Hashed twice: after once, the tables of two ranks are shifted copies of each other.
    """
    mixed = torch.arange(PERIOD, dtype=torch.int64) + 5_003 * rank + 7 * seed + 1
    for _ in range(2):
        mixed = (mixed * _KNUTH) & 0xFFFFFFFF
        mixed ^= mixed >> 15
    values = (mixed >> 13) % 3 + 1
    return values * 12 if op == "AVG" else values


def tile(period: torch.Tensor, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements `start` to `start + count - 1` of the endless repetition of `period`."""
    rolled = period.to(dtype).roll(-(start % PERIOD))
    return rolled.repeat(count // PERIOD + 1)[:count]


def reduced(tables: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """The tables combined element by element."""
    combine = {
        "SUM": torch.add,
        "AVG": torch.add,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "PRODUCT": torch.mul,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[op]
    total = reduce(combine, tables)
    return total // len(tables) if op == "AVG" else total


def check(what: str, got: torch.Tensor, period: torch.Tensor, start: int = 0) -> None:
    """Compare `got` with elements `start`... of the repetition of `period`, bit for bit.

    Raises:
        AssertionError: names the first element that differs.
    """
    expected = tile(period, start, got.numel(), got.dtype)
    if not torch.equal(got, expected):
        where = int((got != expected).nonzero()[0])
        raise AssertionError(
            f"{what}: element {where} of {got.numel()} is {got[where].item()}, expected"
            f" {expected[where].item()}. The result of a collective is wrong."
        )
