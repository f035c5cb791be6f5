# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Backends of other devices inside our group, for strings like `"cpu:smddp,cuda:nccl"`.

torch makes each device's backend itself, unless one of the creators returns a whole process group,
as ours does; then it stops there. What it would have made for the remaining devices is made here.

Each is put into a plain `ProcessGroup` of its own, as torch does: a bare `Backend` has only some of
the operations under the names by which `torch.distributed` calls them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    PrefixStore,
    ProcessGroup,
    Store,
    _DistributedBackendOptions,
)
from torch.distributed import distributed_c10d

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["create_nccl", "create_other_backend"]


def create_other_backend(
    device: str, name: str, options: Any, backend_options: Any
) -> ProcessGroup | None:
    """Make backend `name` for one device of a group of ours.

    None for NCCL where there is no GPU, or a torch without NCCL: no tensor of ours could be on such
    a device, and a script that says `"cpu:smddp,cuda:nccl"` should run there, too.

    Args:
        options: torch's `_DistributedBackendOptions` of the group.
        backend_options: `pg_options` of the caller, or None.

    Raises:
        SMDDPConfigInvalid: torch on this machine has no such backend.
    """
    store = PrefixStore(f"beside-smddp/{device}/", options.store)
    plugin = dist.Backend._plugins.get(name.upper())
    made: Any
    if plugin is not None and plugin.extended_api:
        made = plugin.creator_fn(_copy(options, store), backend_options)
    elif plugin is not None:
        made = plugin.creator_fn(store, options.group_rank, options.group_size, options.timeout)
    elif name == dist.Backend.GLOO and dist.is_gloo_available():
        made = distributed_c10d.ProcessGroupGloo(
            store, options.group_rank, options.group_size, timeout=options.timeout
        )
        _describe(made.options, options)
        made._set_sequence_number_for_group()
    elif name == dist.Backend.NCCL:
        if not dist.is_nccl_available() or torch.cuda.device_count() == 0:
            why = "torch sees no GPU" if dist.is_nccl_available() else "torch is built without NCCL"
            get_logger().info("%s; '%s:nccl' is left out", why, device)
            return None
        return create_nccl(store, options, backend_options, _split_source())
    else:
        raise SMDDPConfigInvalid(
            f"backend '{name}' for device '{device}' cannot be used beside smddp here; expected"
            " gloo, nccl or a backend registered with torch, and present in this build of it. Check"
            f" torch.distributed.is_backend_available('{name}'), or leave {device} out."
        )
    if isinstance(made, ProcessGroup):
        return made
    kind = dist.Backend.backend_type_map.get(name, ProcessGroup.BackendType.CUSTOM)
    return _group_of(made, device, kind, store, options)


def create_nccl(
    store: Store, options: Any, nccl_options: Any = None, split_from: Any = None
) -> ProcessGroup:
    """NCCL for CUDA tensors; connects at its first operation, as torch's does.

    Args:
        store: for this backend alone.
        options: `group_rank`, `group_size`, `timeout`, `group_id`, `global_ranks_in_group` of the
            group, as torch's `_DistributedBackendOptions` has them.
        nccl_options: `ProcessGroupNCCL.Options` of the caller, or None.
        split_from: the default group's `ProcessGroupNCCL`, if torch splits that for sub-groups.
    """
    own = nccl_options or distributed_c10d.ProcessGroupNCCL.Options()
    own._timeout = options.timeout
    _describe(own, options)
    if split_from is not None:
        # The ranks outside the new group take part in the split, so those inside must as well.
        own.split_from = split_from
        own.split_color = distributed_c10d._process_group_color(options.global_ranks_in_group)
    made = distributed_c10d.ProcessGroupNCCL(store, options.group_rank, options.group_size, own)
    made._set_sequence_number_for_group()
    return _group_of(made, "cuda", ProcessGroup.BackendType.NCCL, store, options)


def _split_source() -> Any:
    """What torch will split for this group, by its own rule: a default group bound to a device."""
    if not dist.is_initialized() or not distributed_c10d._get_default_group().bound_device_id:
        return None
    return distributed_c10d._get_split_source(distributed_c10d._get_default_group())


def _group_of(backend: Any, device: str, kind: Any, store: Store, options: Any) -> ProcessGroup:
    group = ProcessGroup(store, options.group_rank, options.group_size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    group._set_group_name(options.group_id)
    return group


def _describe(own: Any, options: Any) -> None:
    own.global_ranks_in_group = options.global_ranks_in_group
    own.group_name = options.group_id


def _copy(options: Any, store: PrefixStore) -> Any:
    copy = _DistributedBackendOptions()
    copy.store = store
    for name in ("group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"):
        setattr(copy, name, getattr(options, name))
    return copy
