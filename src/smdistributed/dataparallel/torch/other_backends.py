# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Backends of other devices inside our group, for strings like `"cpu:smddp,cuda:nccl"`.

torch makes each device's backend itself, unless one of the creators returns a whole process group,
as ours does; then it stops there. What it would have made for the remaining devices is made here.
(In `"cpu:gloo,cuda:smddp"` it comes to Gloo before it comes to us, and drops that one.)
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, _DistributedBackendOptions
from torch.distributed import distributed_c10d

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["create_other_backend"]


def create_other_backend(
    device: str, name: str, options: Any, backend_options: Any
) -> Backend | None:
    """Make backend `name` for one device of a group of ours.

    None where torch is built without NCCL: no tensor of ours could be on such a device, and a
    script that says `"cpu:smddp,cuda:nccl"` should run on a machine without a GPU, too.

    Args:
        options: torch's `_DistributedBackendOptions` of the group.
        backend_options: `pg_options` of the caller, or None.

    Raises:
        SMDDPConfigInvalid: torch on this machine has no such backend.
    """
    store = PrefixStore(f"beside-smddp/{device}/", options.store)
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    plugin = dist.Backend._plugins.get(name.upper())
    made: Any
    if plugin is not None and plugin.extended_api:
        made = plugin.creator_fn(_copy(options, store), backend_options)
    elif plugin is not None:
        made = plugin.creator_fn(store, rank, size, timeout)
    elif name == dist.Backend.GLOO and dist.is_gloo_available():
        made = distributed_c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        _describe(made.options, options)
        made._set_sequence_number_for_group()
    elif name == dist.Backend.NCCL and dist.is_nccl_available():
        nccl_options = backend_options or distributed_c10d.ProcessGroupNCCL.Options()
        nccl_options._timeout = timeout
        _describe(nccl_options, options)
        made = distributed_c10d.ProcessGroupNCCL(store, rank, size, nccl_options)
        made._set_sequence_number_for_group()
    elif name == dist.Backend.NCCL:
        get_logger().info("this torch is built without NCCL; '%s:nccl' is left out", device)
        return None
    else:
        raise SMDDPConfigInvalid(
            f"backend '{name}' for device '{device}' cannot be used beside smddp here; expected"
            " gloo, nccl or a backend registered with torch, and present in this build of it. Check"
            f" torch.distributed.is_backend_available('{name}'), or leave {device} out."
        )
    backend: Backend = made
    return backend


def _describe(own: Any, options: Any) -> None:
    own.global_ranks_in_group = options.global_ranks_in_group
    own.group_name = options.group_id


def _copy(options: Any, store: PrefixStore) -> Any:
    copy = _DistributedBackendOptions()
    copy.store = store
    for name in ("group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"):
        setattr(copy, name, getattr(options, name))
    return copy
