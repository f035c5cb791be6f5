# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process group of `SMDDP_ZERO_COPY=recurring`: each call passes the gate.

A class of its own, so that groups which move nothing do not pay for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from smdistributed.dataparallel.torch.adoption.gate import gate
from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp

__all__ = ["MovingProcessGroup"]

_TAKE_TENSORS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "broadcast",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "_allgather_base",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "alltoall_base",
    "send",
    "recv",
    "recv_anysource",
)


class MovingProcessGroup(ProcessGroupSmddp):
    """`ProcessGroupSmddp` whose calls let a storage move only while none of them runs."""


def _through_the_gate(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: MovingProcessGroup, *args: Any, **kwargs: Any) -> Any:
        with gate.call():
            return method(self, *args, **kwargs)

    return call


for _name in _TAKE_TENSORS:
    setattr(MovingProcessGroup, _name, _through_the_gate(getattr(ProcessGroupSmddp, _name)))
