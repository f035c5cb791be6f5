# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the functions that run as torch ranks share: a process group, and tagged data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from machine_speed import scaled

TIMEOUT_S = scaled(30.0)
_PATIENCE = timedelta(seconds=scaled(60.0))
_ports: set[str | None] = set()  # at which this rank has met the others


@contextlib.contextmanager
def smddp(backend: str = "smddp", timeout_s: float = TIMEOUT_S, **options: Any) -> Iterator[None]:
    """The documented start of a script, and an orderly end.

    A second group at the same port is refused: a rank that is ahead would meet the store of the
    first one, which rank 0 is about to close, and torch does not try again (a limit of its own).
    """
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    if "store" not in options and options.get("init_method", "env://") == "env://":
        port = os.environ.get("MASTER_PORT")
        assert port not in _ports, f"a second group at port {port}; pass init_method=file://..."
        _ports.add(port)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **options)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def tagged(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`count` elements that each tell their rank and index; exact in every dtype for small ones."""
    return (torch.arange(count) % 7 + 8 * rank + 1).to(dtype)


def algorithms_of(operations: Any) -> list[str]:
    """The algorithms of the operations that a function makes, as they came out."""
    from smdistributed.collectives import _native

    _native.start_trace()
    operations()
    events, dropped = _native.stop_trace()
    assert dropped == 0
    return [event[6] for event in events]


def raised(function: Any, *args: Any, **kwargs: Any) -> tuple[str, str, list[str]]:
    """Class name, text and base names of the error that a call must raise."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        bases = [base.__name__ for base in type(error).__mro__]
        return type(error).__name__, str(error), bases
    raise AssertionError(f"{function} did not raise")


def give_up() -> None:
    """Of rank 0: `wait_until_given_up` of rank 1 ends."""
    store = dist.distributed_c10d._get_default_store()
    store.set("given up", "")
    store.wait(["seen"], _PATIENCE)  # it lives here


def wait_until_given_up() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.wait(["given up"], _PATIENCE)
    store.set("seen", "")
