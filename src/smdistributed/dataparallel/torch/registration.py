# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes `torch.distributed` know the backend `smddp`.

`register()` is what the import of `torch_smddp` does. Four things need more than
`Backend.register_backend`:

- **Strings with several backends.** torch calls a backend's creator without telling it the string
  that the user gave, and drops the backends that it has made by then. We note the string on its way
  in and put our device first in what torch sees, by wrapping the one internal function that makes
  every group; `new_group`, device meshes and names imported earlier all come through it.
- **The default timeout.** `SMDDP_TIMEOUT_SECONDS` counts where the script names no timeout. A
  creator cannot tell: torch has put its own default in place by then.
- **Changing a group's timeout.** torch's function for it knows only its own classes.
- **`Join` with DDP.** It hands a work handle to DDP's C++ code and forgets it. C++ keeps the C++
  half of a handle made in Python, but calls on it hang or crash once the Python half is gone (torch
  2.13), so somebody must hold it until the next iteration.

The wrappers do nothing for groups without `smddp`, and are installed once.

Registering must not make `smddp` anybody's default: given `devices`, torch fills only those that
have no default yet, and `cpu` and `cuda` have one (specification, section 4.1).
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join

from smdistributed._common import errors
from smdistributed._common.discovery import (
    Placement,
    complete_placement,
    discover,
    export_placement,
    host_identity,
)
from smdistributed._common.log import get_logger
from smdistributed._common.settings import Settings, process_settings
from smdistributed._common.version import __version__
from smdistributed.collectives import _native
from smdistributed.collectives.rendezvous.mpi_host import host_of_rank_zero
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch import shims
from smdistributed.dataparallel.torch.cuda.create import CudaRequest
from smdistributed.dataparallel.torch.cuda.lane import close_all
from smdistributed.dataparallel.torch.exchange import store_exchange
from smdistributed.dataparallel.torch.other_backends import create_other_backend
from smdistributed.dataparallel.torch.process_group import BACKEND_NAME, ProcessGroupSmddp
from smdistributed.dataparallel.torch.tracing import note_group
from smdistributed.dataparallel.trace.session import session as trace_session

__all__ = ["create_process_group", "register"]

_DEVICES = ["cpu", "cuda"]

_lock = threading.Lock()


class _Request(threading.local):
    """What torch was asked for while it makes a group."""

    backend: str = BACKEND_NAME
    device_id: torch.device | None = None


_request = _Request()


def register() -> None:
    """Run discovery, export what it found, install the shims, register the backend. Idempotent.

    Raises:
        SMDDPConfigInvalid: an environment variable has a value that cannot work.
    """
    with _lock:
        export_placement(_discover())
        shims.install()
        if dist.is_backend_available(BACKEND_NAME):
            return
        dist.Backend.register_backend(
            BACKEND_NAME, create_process_group, extended_api=True, devices=_DEVICES
        )
        _wrap_group_creation()
        _wrap_default_timeout()
        _wrap_timeout_setter()
        _wrap_join()
        atexit.register(_leave)
        trace_session.start_from_environment()


def _leave() -> None:
    """At exit: end what waits in the engine, then the threads that waited."""
    _native.prepare_exit()
    close_all()


def create_process_group(options: Any, backend_options: Any) -> ProcessGroupSmddp:
    """The creator that torch calls for every new group with backend `smddp`.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, timeout, name, ranks.
        backend_options: `pg_options` of the caller. We have none of our own; they go to the
            backends of other devices, and NCCL's to the one that has our CUDA tensors.
    """
    is_default = not options.global_ranks_in_group
    if is_default:
        _complete_discovery(options)
    settings = _settings()
    config = distributed_c10d.BackendConfig(dist.Backend(_request.backend))
    backends = config.get_device_backend_map()
    others = {
        device: create_other_backend(device, str(name), options, backend_options)
        for device, name in backends.items()
        if name != BACKEND_NAME
    }
    group = ProcessGroupSmddp(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        group_name=str(options.group_id),
        devices=[device for device, name in backends.items() if name == BACKEND_NAME],
        others={device: backend for device, backend in others.items() if backend is not None},
        global_ranks=options.global_ranks_in_group,
        transport=settings.cpu_transport,
        interfaces=",".join(settings.interfaces) or "auto",
        cuda=CudaRequest(
            settings.cuda_transport, _request.device_id, _nccl_options(backend_options)
        ),
    )
    if _request.device_id is not None:
        group.bound_device_id = _request.device_id
    note_group(options)
    if is_default and options.group_rank == 0:
        get_logger().info("smddp %s: %d ranks", __version__, options.group_size)
    return group


def _nccl_options(backend_options: Any) -> Any:
    """The caller's options, if they are for NCCL."""
    kind = getattr(getattr(distributed_c10d, "ProcessGroupNCCL", None), "Options", None)
    return backend_options if kind is not None and isinstance(backend_options, kind) else None


def _discover() -> Placement:
    try:
        # Once MASTER_ADDR has been exported, MPI is not asked again.
        return discover(broadcast_host=host_of_rank_zero)
    except errors.ConfigurationError as error:
        raise SMDDPConfigInvalid(str(error)) from error


def _settings() -> Settings:
    try:
        return process_settings()
    except errors.ConfigurationError as error:
        raise SMDDPConfigInvalid(str(error)) from error


def _complete_discovery(options: Any) -> None:
    """Number the ranks of each host, where the launcher said nothing about hosts.

    Source: specification, section 3.2. A collective step, so it must depend on nothing that may
    differ between ranks; whether a source gives local ranks is a property of the launcher.
    """
    placement = _discover()
    if placement.source == "none" or placement.local_rank is not None:
        return
    if placement.world_size != options.group_size:
        return  # the script has ranks of its own making
    timeout_s = options.timeout.total_seconds()
    exchange = store_exchange(options.store, options.group_rank, options.group_size, timeout_s)
    identities = exchange("hosts", host_identity(os.environ).encode())
    export_placement(complete_placement(placement, [text.decode() for text in identities]))


def _wrap_group_creation() -> None:
    original = getattr(distributed_c10d, "_new_process_group_helper", None)
    if original is None or "backend" not in inspect.signature(original).parameters:
        get_logger().warning(
            "torch %s makes groups in a way that smddp does not know; a backend string with several"
            " devices will use smddp for all of them. Expected torch 2.13. Report this, please.",
            torch.__version__,
        )
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def new_process_group(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        written = arguments["backend"]
        before = (_request.backend, _request.device_id)
        _request.backend = str(written)
        _request.device_id = arguments.get("device_id")
        # torch creates the backends in this order until it comes to ours, then drops those before.
        arguments["backend"] = dist.Backend(_ours_first(str(written)))
        try:
            group, store = original(*bound.args, **bound.kwargs)
        finally:
            _request.backend, _request.device_id = before
        if isinstance(group, ProcessGroupSmddp):
            world = distributed_c10d._world  # where get_backend() looks
            world.pg_map[group] = (written, world.pg_map[group][1])
            world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(written))
        return group, store

    distributed_c10d._new_process_group_helper = new_process_group


def _ours_first(backend: str) -> str:
    """`"cuda:nccl,cpu:smddp"` -> `"cpu:smddp,cuda:nccl"`; strings without `smddp` as they are."""
    pairs = backend.split(",")
    ours = [pair for pair in pairs if _is_ours(pair)]
    if not ours or len(ours) == len(pairs):
        return backend
    return ",".join([*ours, *(pair for pair in pairs if pair not in ours)])


def _is_ours(pair: str) -> bool:
    """Whether `"cpu:smddp"`, or a backend's name alone, means ours."""
    return pair.lower().rpartition(":")[2] == BACKEND_NAME


def _wrap_default_timeout() -> None:
    """Let `SMDDP_TIMEOUT_SECONDS` be the timeout that a script does not name, of the meeting too.

    Source: specification, section 6.6.
    """
    original = getattr(distributed_c10d, "_get_default_timeout", None)
    if original is None:
        get_logger().warning(
            "torch %s chooses timeouts in a way that smddp does not know; SMDDP_TIMEOUT_SECONDS has"
            " no effect. Expected torch 2.13. Pass timeout= to init_process_group instead.",
            torch.__version__,
        )
        return

    @functools.wraps(original)
    def default_timeout(backend: str) -> timedelta:
        if any(_is_ours(pair) for pair in backend.split(",")):
            return timedelta(seconds=_settings().timeout_s)
        result: timedelta = original(backend)
        return result

    distributed_c10d._get_default_timeout = default_timeout


def _wrap_timeout_setter() -> None:
    original = getattr(distributed_c10d, "_set_pg_timeout", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_group_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
        target = group if group is not None else distributed_c10d._get_default_group()
        if isinstance(target, ProcessGroupSmddp):
            target.set_timeout(timeout)
        else:
            original(timeout, group)

    distributed_c10d._set_pg_timeout = set_group_timeout


def _wrap_join() -> None:
    original = Join.notify_join_context
    held: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def notify_join_context(joinable: Any) -> Any:
        work = original(joinable)
        if work is not None:
            held[joinable] = work
        return work

    Join.notify_join_context = staticmethod(notify_join_context)  # type: ignore[method-assign]
