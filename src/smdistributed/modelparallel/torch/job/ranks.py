# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I, and who is in my groups: `smp.rank()` and its relatives.

Those that return numbers or lists are described in `modelparallel.job.ranks`; here is what returns
process groups. Every function raises `SMPNotInitialized` before `smp.init()`.

Source: modelparallel specification, section 2.
"""

from __future__ import annotations

from torch.distributed import ProcessGroup

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.ranks import Ranks
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


_ranks = Ranks(state.require)

dp_rank = _ranks.dp_rank
dp_size = _ranks.dp_size
get_dp_group = _ranks.get_dp_group
get_mp_group = _ranks.get_mp_group
get_pp_group = _ranks.get_pp_group
get_rdp_group = _ranks.get_rdp_group
get_tp_group = _ranks.get_tp_group
local_rank = _ranks.local_rank
local_size = _ranks.local_size
mp_rank = _ranks.mp_rank
mp_size = _ranks.mp_size
num_microbatches = _ranks.num_microbatches
pp_rank = _ranks.pp_rank
pp_size = _ranks.pp_size
rank = _ranks.rank
rdp_rank = _ranks.rdp_rank
rdp_size = _ranks.rdp_size
size = _ranks.size
tp_rank = _ranks.tp_rank
tp_size = _ranks.tp_size


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
