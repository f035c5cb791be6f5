# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that the ranks of a host share, for users.

Source: docs/zero_copy.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.dataparallel.torch.default_group import require_initialized, resolve_group
from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp

__all__ = ["empty_shared"]


@keep_from_compiler
def empty_shared(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None
) -> Tensor:
    """A tensor on the CPU whose memory all ranks of the host reach: collectives need not copy it.

    `all_reduce`, `reduce` and `broadcast` of such a tensor work in place, and other collectives
    read their input where it lies, if every rank of the group passes one. Views of it and parts of
    it are as good.

    Args:
        size: the shape, as for `torch.empty`: `empty_shared(3, 4)` or `empty_shared((3, 4))`.
        dtype: default: torch's default dtype.
        group: the process group whose collectives it is for; default: the default group. In
            collectives of other groups it is an ordinary tensor.

    Returns:
        An uninitialized, contiguous tensor. It is in ordinary memory, where it works as well and
        is copied in collectives, if the group has another backend or one rank, spans several
        hosts, has failed or has no room left, and with `SMDDP_TRANSPORT=tcp` or
        `SMDDP_ZERO_COPY=0`. Ranks may get different kinds.

    Owner: the tensor and its views. The memory goes back to the group with the last of them, and
        outlives the group: it is valid after `destroy_process_group`, `abort` and the death of
        other ranks. Its storage cannot be resized. Copies, pickles and `torch.save` make ordinary
        tensors. After `fork` a child has a copy of its own; what it has not written itself may
        show what the parent or another rank writes there later.
    Threads: any. Not a collective; returns at once.

    Raises:
        SMDDPNotInitialized: there is no default group yet.
        SMDDPConfigInvalid: (a ValueError) `group` is no process group, or this rank is outside it.
        ConfigurationError: (a ValueError) this process is a forked child of the group's.
        RuntimeError, TypeError: `size` or `dtype` is nothing that `torch.empty` takes.

    Source: our choice; docs/zero_copy.md, "A tensor of your own".
    """
    require_initialized("empty_shared()")
    resolved = resolve_group(group)
    if resolved is dist.GroupMember.NON_GROUP_MEMBER:
        raise SMDDPConfigInvalid(
            "empty_shared was given a group that this rank is not in; expected one of its own."
            " Call it on the ranks of the group only."
        )
    owner = dist.group.WORLD if resolved is None else resolved
    # What torch makes of the arguments; takes no memory.
    sizes: Any = size
    shape = torch.empty(*sizes, dtype=dtype, device="meta")
    if not isinstance(owner, ProcessGroupSmddp):
        get_logger().debug("empty_shared: the group is not smddp's, so this is ordinary memory")
        return torch.empty(shape.shape, dtype=shape.dtype, device="cpu")
    if type(shape) is not Tensor:  # in a trace, or among fake tensors
        return torch.empty(shape.shape, dtype=shape.dtype, device="cpu")
    return owner.shared_memory.empty(shape.shape, shape.dtype)
