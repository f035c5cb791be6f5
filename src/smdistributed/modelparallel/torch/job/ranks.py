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

Every function raises `SMPNotInitialized` before `smp.init()`. A rank in a group is the position in
it; the lists that `get_..._group` return are world ranks, ascending. The arithmetic is in
`decide.topology`.

Source: modelparallel specification, section 2.
"""

from __future__ import annotations

from torch.distributed import ProcessGroup

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import state

__all__ = [
    "dp_rank",
    "dp_size",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "local_rank",
    "local_size",
    "mp_rank",
    "mp_size",
    "num_microbatches",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "size",
    "tp_rank",
    "tp_size",
]


def rank() -> int:
    """Rank of this process in the world."""
    return state.require("smp.rank()").rank


def size() -> int:
    """The world size: processes of the job."""
    return state.require("smp.size()").size


def local_rank() -> int:
    """Rank of this process among those of its host; the index of the GPU it should use."""
    return state.require("smp.local_rank()").local_rank


def local_size() -> int:
    """Processes of this host."""
    return state.require("smp.local_size()").local_size


def mp_rank() -> int:
    """Rank in the MP group."""
    return state.require("smp.mp_rank()").rank_in(GroupKind.MP)


def mp_size() -> int:
    """Members of an MP group."""
    return state.require("smp.mp_size()").size_of(GroupKind.MP)


def dp_rank() -> int:
    """Rank in the DP group."""
    return state.require("smp.dp_rank()").rank_in(GroupKind.DP)


def dp_size() -> int:
    """Members of a DP group."""
    return state.require("smp.dp_size()").size_of(GroupKind.DP)


def pp_rank() -> int:
    """Rank in the PP group: the index of the partition that this rank holds."""
    return state.require("smp.pp_rank()").rank_in(GroupKind.PP)


def pp_size() -> int:
    """Members of a PP group: the number of partitions."""
    return state.require("smp.pp_size()").size_of(GroupKind.PP)


def tp_rank() -> int:
    """Rank in the TP group."""
    return state.require("smp.tp_rank()").rank_in(GroupKind.TP)


def tp_size() -> int:
    """Members of a TP group."""
    return state.require("smp.tp_size()").size_of(GroupKind.TP)


def rdp_rank() -> int:
    """Rank in the RDP group."""
    return state.require("smp.rdp_rank()").rank_in(GroupKind.RDP)


def rdp_size() -> int:
    """Members of an RDP group."""
    return state.require("smp.rdp_size()").size_of(GroupKind.RDP)


def get_mp_group() -> list[int]:
    """World ranks of this rank's MP group."""
    return list(state.require("smp.get_mp_group()").members(GroupKind.MP))


def get_dp_group() -> list[int]:
    """World ranks of this rank's DP group."""
    return list(state.require("smp.get_dp_group()").members(GroupKind.DP))


def get_pp_group() -> list[int]:
    """World ranks of this rank's PP group."""
    return list(state.require("smp.get_pp_group()").members(GroupKind.PP))


def get_tp_group() -> list[int]:
    """World ranks of this rank's TP group."""
    return list(state.require("smp.get_tp_group()").members(GroupKind.TP))


def get_rdp_group() -> list[int]:
    """World ranks of this rank's RDP group."""
    return list(state.require("smp.get_rdp_group()").members(GroupKind.RDP))


def get_world_process_group() -> ProcessGroup:
    """The default group of `torch.distributed`."""
    return state.require("smp.get_world_process_group()").process_group(GroupKind.WORLD)


def get_mp_process_group() -> ProcessGroup:
    """The MP group, for `torch.distributed`."""
    return state.require("smp.get_mp_process_group()").process_group(GroupKind.MP)


def get_dp_process_group() -> ProcessGroup:
    """The DP group, for `torch.distributed`."""
    return state.require("smp.get_dp_process_group()").process_group(GroupKind.DP)


def get_pp_process_group() -> ProcessGroup:
    """The PP group, for `torch.distributed`."""
    return state.require("smp.get_pp_process_group()").process_group(GroupKind.PP)


def get_tp_process_group() -> ProcessGroup:
    """The TP group, for `torch.distributed`."""
    return state.require("smp.get_tp_process_group()").process_group(GroupKind.TP)


def get_rdp_process_group() -> ProcessGroup:
    """The RDP group, for `torch.distributed`."""
    return state.require("smp.get_rdp_process_group()").process_group(GroupKind.RDP)


def num_microbatches() -> int:
    """Pieces that a batch is cut into: the parameter `microbatches`."""
    return state.require("smp.num_microbatches()").config.microbatches
