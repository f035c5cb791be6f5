# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the process groups of the backend `smddp`, when torch asks for one."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from smdistributed._common import errors
from smdistributed._common.discovery import (
    Membership,
    complete_membership,
    discover,
    export_membership,
    host_identity,
)
from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.log import get_logger
from smdistributed._common.settings import ZeroCopy, process_settings
from smdistributed._common.version import __version__
from smdistributed.collectives.rendezvous.mpi_host import host_of_rank_zero
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch.adoption.moving_group import MovingProcessGroup
from smdistributed.dataparallel.torch.cuda.create import CudaRequest
from smdistributed.dataparallel.torch.exchange import store_exchange
from smdistributed.dataparallel.torch.meeting import require_one_job
from smdistributed.dataparallel.torch.other_backends import create_other_backend
from smdistributed.dataparallel.torch.process_group import BACKEND_NAME, ProcessGroupSmddp
from smdistributed.dataparallel.torch.torch_wrappers import request
from smdistributed.dataparallel.torch.tracing import note_group

__all__ = ["create_process_group", "discover_membership"]


def discover_membership() -> Membership:
    """Returns which rank of which job this process is.

    Raises:
        SMDDPConfigInvalid: an environment variable has a value that cannot work.
    """
    try:
        # Once MASTER_ADDR has been exported, MPI is not asked again.
        return discover(broadcast_host=host_of_rank_zero)
    except errors.ConfigurationError as error:
        raise SMDDPConfigInvalid(str(error)) from None


def create_process_group(options: Any, backend_options: Any) -> ProcessGroupSmddp:
    """The creator that torch calls for every new group with backend `smddp`.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, timeout, name, ranks.
        backend_options: `pg_options` of the caller. We have none of our own; they go to the
            backends of other devices, and NCCL's to the one that has our CUDA tensors.
    """
    is_default = not options.global_ranks_in_group
    if is_default:
        require_one_job(options.store, options.group_rank, options.group_size, options.timeout)
        _complete_discovery(options)
    settings = process_settings()
    config = distributed_c10d.BackendConfig(dist.Backend(request.backend))
    backends = config.get_device_backend_map()
    others = {
        device: create_other_backend(device, str(name), options, backend_options)
        for device, name in backends.items()
        if name != BACKEND_NAME
    }
    kind = MovingProcessGroup if settings.zero_copy is ZeroCopy.RECURRING else ProcessGroupSmddp
    group = kind(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        group_name=str(options.group_id),
        devices=[device for device, name in backends.items() if name == BACKEND_NAME],
        others={device: backend for device, backend in others.items() if backend is not None},
        global_ranks=options.global_ranks_in_group,
        engine_options=EngineOptions.from_settings(settings).of_group(
            options.global_ranks_in_group or ()
        ),
        cuda=CudaRequest(
            settings.cuda_transport, request.device_id, _nccl_options(backend_options)
        ),
        zero_copy=settings.zero_copy,
    )
    if request.device_id is not None:
        group.bound_device_id = request.device_id
    note_group(options)
    if is_default and options.group_rank == 0:
        get_logger().info("smddp %s: %d ranks", __version__, options.group_size)
    return group


def _nccl_options(backend_options: Any) -> Any:
    """The caller's options, if they are for NCCL."""
    kind = getattr(getattr(distributed_c10d, "ProcessGroupNCCL", None), "Options", None)
    return backend_options if kind is not None and isinstance(backend_options, kind) else None


def _complete_discovery(options: Any) -> None:
    """Number the ranks of each host, where the launcher said nothing about hosts.

    Source: specification, section 3.2. A collective step, so it must depend on nothing that may
    differ between ranks; whether a source gives local ranks is a property of the launcher.
    """
    membership = discover_membership()
    if membership.source == "none" or membership.local_rank is not None:
        return
    if membership.world_size != options.group_size:
        return  # the script has ranks of its own making
    timeout_s = options.timeout.total_seconds()
    exchange = store_exchange(options.store, options.group_rank, options.group_size, timeout_s)
    identities = exchange("hosts", host_identity(os.environ).encode())
    export_membership(complete_membership(membership, [text.decode() for text in identities]))
