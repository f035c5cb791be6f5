# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that have run out of batches: they take part in the others' collectives, with zeros.

torch's `Join` calls the hook here once for each step that another rank still makes. The hook must
make the collectives of that step, in their order:

    forward     broadcast of buffers, if the model has any
                one all_reduce: does anybody reduce gradients in this step?
    backward    the buckets; with find_unused_parameters, who has which gradients

Source: dataparallel specification, sections 5.2 (join hooks) and 6.6.
"""

# Much of torch's class has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

__all__ = ["ShadowSteps"]


class ShadowSteps(JoinHook):
    """Makes the collectives of steps that other ranks make.

    Args:
        ddp: the wrapper.
        divide_by_initial_world_size: average over all ranks, or over those that still have batches.
    """

    def __init__(self, ddp: DistributedDataParallel, divide_by_initial_world_size: bool) -> None:
        self._ddp = ddp
        ddp._divide_by_initial_world_size = divide_by_initial_world_size

    def main_hook(self) -> None:
        """One step of the others."""
        ddp = self._ddp
        ddp._check_and_sync_module_buffers()
        does_reduce = ddp._check_global_requires_backward_grad_sync(is_joined_rank=True)
        ddp.require_forward_param_sync = does_reduce
        if does_reduce and ddp.reducer is not None:
            ddp.reducer.reduce_zeros(average=ddp._divide_by_initial_world_size)

    def post_hook(self, is_last_joiner: bool) -> None:
        """All have run out: take the weights of a rank that had the most batches."""
        self._ddp._sync_final_model(is_last_joiner)
