# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Wrappers around functions of torch, for what a backend needs and `register_backend` lacks.

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

The wrappers do nothing for groups without `smddp`.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join

from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.torch.process_group import BACKEND_NAME, ProcessGroupSmddp

__all__ = ["install", "request"]


class _Request(threading.local):
    """What torch was asked for while it makes a group.

    Attributes:
        backend: the user's string, such as "cuda:nccl,cpu:smddp".
        device_id: the device to which the user binds the group, or None.
    """

    backend: str = BACKEND_NAME
    device_id: torch.device | None = None


request = _Request()
"""Of the group that this thread makes; the creator of groups reads it."""


def install() -> None:
    """Put the wrappers in place; once per process."""
    _wrap_group_creation()
    _wrap_default_timeout()
    _wrap_timeout_setter()
    _wrap_join()


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
        before = (request.backend, request.device_id)
        request.backend = str(written)
        request.device_id = arguments.get("device_id")
        # torch creates the backends in this order until it comes to ours, then drops those before.
        arguments["backend"] = dist.Backend(_ours_first(str(written)))
        try:
            group, store = original(*bound.args, **bound.kwargs)
        finally:
            request.backend, request.device_id = before
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
            return timedelta(seconds=process_settings().timeout_s)
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
