# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I, and who is in my groups: `smp.rank()` and its relatives.

| group | its members hold |
| --- | --- |
| PP | the partitions of one pipeline |
| TP | slices of the same distributed modules |
| RDP | identical parameters |
| MP | together one replica of the model (the PP groups of a TP group) |
| DP | the same partition (the TP groups of an RDP group) |

The arithmetic is in `decide.topology`.

Source: modelparallel specification, section 2.
"""

from __future__ import annotations

from collections.abc import Callable

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.state import BaseJob

__all__ = ["Ranks"]


class Ranks:
    """The functions that a framework's package offers under `smp`.

    Each raises `SMPNotInitialized` before `smp.init()`. A rank in a group is the position in it;
    the lists that `get_..._group` return are world ranks, ascending.

    Args:
        require: the job, or an error that says what needs it; of a `BaseState`.
    """

    def __init__(self, require: Callable[[str], BaseJob]) -> None:
        self._require = require

    def rank(self) -> int:
        """Rank of this process in the world."""
        return self._require("smp.rank()").rank

    def size(self) -> int:
        """The world size: processes of the job."""
        return self._require("smp.size()").size

    def local_rank(self) -> int:
        """Rank of this process among those of its host; the index of the GPU it should use."""
        return self._require("smp.local_rank()").local_rank

    def local_size(self) -> int:
        """Processes of this host."""
        return self._require("smp.local_size()").local_size

    def mp_rank(self) -> int:
        """Rank in the MP group."""
        return self._require("smp.mp_rank()").rank_in(GroupKind.MP)

    def mp_size(self) -> int:
        """Members of an MP group."""
        return self._require("smp.mp_size()").size_of(GroupKind.MP)

    def dp_rank(self) -> int:
        """Rank in the DP group."""
        return self._require("smp.dp_rank()").rank_in(GroupKind.DP)

    def dp_size(self) -> int:
        """Members of a DP group."""
        return self._require("smp.dp_size()").size_of(GroupKind.DP)

    def pp_rank(self) -> int:
        """Rank in the PP group: the index of the partition that this rank holds."""
        return self._require("smp.pp_rank()").rank_in(GroupKind.PP)

    def pp_size(self) -> int:
        """Members of a PP group: the number of partitions."""
        return self._require("smp.pp_size()").size_of(GroupKind.PP)

    def tp_rank(self) -> int:
        """Rank in the TP group."""
        return self._require("smp.tp_rank()").rank_in(GroupKind.TP)

    def tp_size(self) -> int:
        """Members of a TP group."""
        return self._require("smp.tp_size()").size_of(GroupKind.TP)

    def rdp_rank(self) -> int:
        """Rank in the RDP group."""
        return self._require("smp.rdp_rank()").rank_in(GroupKind.RDP)

    def rdp_size(self) -> int:
        """Members of an RDP group."""
        return self._require("smp.rdp_size()").size_of(GroupKind.RDP)

    def get_mp_group(self) -> list[int]:
        """World ranks of this rank's MP group."""
        return list(self._require("smp.get_mp_group()").members(GroupKind.MP))

    def get_dp_group(self) -> list[int]:
        """World ranks of this rank's DP group."""
        return list(self._require("smp.get_dp_group()").members(GroupKind.DP))

    def get_pp_group(self) -> list[int]:
        """World ranks of this rank's PP group."""
        return list(self._require("smp.get_pp_group()").members(GroupKind.PP))

    def get_tp_group(self) -> list[int]:
        """World ranks of this rank's TP group."""
        return list(self._require("smp.get_tp_group()").members(GroupKind.TP))

    def get_rdp_group(self) -> list[int]:
        """World ranks of this rank's RDP group."""
        return list(self._require("smp.get_rdp_group()").members(GroupKind.RDP))

    def num_microbatches(self) -> int:
        """Pieces that a batch is cut into: the parameter `microbatches`."""
        return self._require("smp.num_microbatches()").config.microbatches
