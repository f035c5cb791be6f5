# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes `torch.distributed` know the backend `smddp`.

`register()` is what the import of `torch_smddp` does. What stands beside it:

    group_creation    makes the process groups that torch asks for
    torch_wrappers    around functions of torch, for what `Backend.register_backend` lacks
    meeting           looks whether ranks can meet, and whether they are of one job
    ddp_buckets       a reducer for torch's DDP whose buckets lie in shared memory
    adoption.watch    notes which storages must not be moved into shared memory
    shims             let scripts that were written for GPUs run without
    casts             let `Compression` take torch tensors

Registering must not make `smddp` anybody's default: given `devices`, torch fills only those that
have no default yet, and `cpu` and `cuda` have one (specification, section 4.1).
"""

from __future__ import annotations

import atexit
import threading

import torch.distributed as dist

from smdistributed._common.discovery import export_membership
from smdistributed.collectives import _native
from smdistributed.dataparallel.torch import (
    background,
    casts,  # noqa: F401 -- for its effect: Compression takes torch tensors
    ddp_buckets,
    meeting,
    shims,
    torch_wrappers,
)
from smdistributed.dataparallel.torch.adoption import watch
from smdistributed.dataparallel.torch.group_creation import (
    create_process_group,
    discover_membership,
)
from smdistributed.dataparallel.torch.process_group import BACKEND_NAME
from smdistributed.dataparallel.trace.session import session as trace_session

__all__ = ["register"]

_DEVICES = ["cpu", "cuda"]

_lock = threading.Lock()


def register() -> None:
    """Run discovery, export what it found, install the shims, register the backend. Idempotent.

    Raises:
        SMDDPConfigInvalid: an environment variable has a value that cannot work.
    """
    with _lock:
        export_membership(discover_membership())
        shims.install()
        if dist.is_backend_available(BACKEND_NAME):
            return
        _native.set_uneven_batches_advice("use torch's Join context, or drop_last")
        dist.Backend.register_backend(
            BACKEND_NAME, create_process_group, extended_api=True, devices=_DEVICES
        )
        torch_wrappers.install()
        meeting.install()
        ddp_buckets.install()
        watch.install()
        atexit.register(background.leave)
        trace_session.start_from_environment()
