# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I, and who is in my groups: `smp.rank()` and its relatives.

They are described in `modelparallel.job.ranks`. TensorFlow's library has no tensor parallelism: PP
and MP groups are the same, RDP and DP groups too, and each TP group is one rank.

Every function raises `SMPNotInitialized` before `smp.init()`; those that would return process
groups of PyTorch raise a NotImplementedError.

Source: TensorFlow modelparallel specification, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from smdistributed.modelparallel.job.ranks import Ranks
from smdistributed.modelparallel.tensorflow.job.state import state

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


def _refused(name: str, instead: str) -> Callable[[], NoReturn]:
    def process_group() -> NoReturn:
        """A process group of PyTorch, which does not exist here: raises a NotImplementedError."""
        raise NotImplementedError(
            f"smp.{name}() is PyTorch only: it returns a group of torch.distributed; expected"
            f" {instead}, which lists the ranks. Call that."
        )

    process_group.__name__ = process_group.__qualname__ = name
    return process_group


get_world_process_group = _refused("get_world_process_group", "range(smp.size())")
get_mp_process_group = _refused("get_mp_process_group", "smp.get_mp_group()")
get_dp_process_group = _refused("get_dp_process_group", "smp.get_dp_group()")
get_pp_process_group = _refused("get_pp_process_group", "smp.get_pp_group()")
get_tp_process_group = _refused("get_tp_process_group", "smp.get_tp_group()")
get_rdp_process_group = _refused("get_rdp_process_group", "smp.get_rdp_group()")
