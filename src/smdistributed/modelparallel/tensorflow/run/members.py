# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of a pipeline as messages to people name them.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Member", "members_of"]


@dataclass(frozen=True)
class Member:
    """A rank of the group.

    Attributes:
        rank: in the job.
        partition: that it holds.
        host, pid: where it is.
    """

    rank: int
    partition: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (partition {self.partition}, host {self.host}, pid {self.pid})"


def members_of(topology: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> list[Member]:
    """Of a group's `topology()`: its ranks hold the partitions in order.

    Args:
        ranks: theirs in the job.
    """
    return [
        Member(rank, partition, str(place["host"]), int(place["pid"]))
        for partition, (rank, place) in enumerate(zip(ranks, topology, strict=True))
    ]
