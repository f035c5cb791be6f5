# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What asynchronous calls return. Source: Horovod's public API; see docs/horovod.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smdistributed.compat.horovod.torch.job import require_group
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["Handle", "poll", "start_comparison", "synchronize"]


class Handle:
    """An operation under way, for `poll` and `synchronize`.

    Args:
        works: of the process group, in the order in which they were started; None is left out.
        finish: makes the result once all works are complete. Runs once.
    """

    def __init__(self, works: Sequence[Any], finish: Callable[[], Any]) -> None:
        self._works = [work for work in works if work is not None]
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def is_complete(self) -> bool:
        """Whether `wait` would not block."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """Block until complete; returns the result, or raises the operation's error, each time."""
        for work in self._works:
            work.wait()
        if self._finish is not None:
            with torch.no_grad():
                self._result = self._finish()
            self._works, self._finish = [], None
        return self._result


def poll(handle: Handle) -> bool:
    """Whether `synchronize(handle)` would return without blocking."""
    return _checked(handle, "poll").is_complete()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation; returns its result: a tensor, or a list or tuple of them.

    Raises:
        SMDDPMismatch: the ranks' calls do not fit each other.
        SMDDPPeerLost, SMDDPTimeoutError: another rank is gone, or does not come.
        SMDDPConfigInvalid: this is no handle.
    """
    return _checked(handle, "synchronize").wait()


def _checked(handle: Any, caller: str) -> Handle:
    if isinstance(handle, Handle):
        return handle
    raise SMDDPConfigInvalid(
        f"hvd.{caller}() got {handle!r}; expected a handle. Pass what an asynchronous call, such as"
        " hvd.allreduce_async(), has returned."
    )


def start_comparison(
    caller: str, name: str | None, factors: tuple[float, float] = (1.0, 1.0)
) -> Any:
    """Let the ranks compare a call that has a name or factors; returns a handle, or None.

    The forms of an operation are one: a rank may call `allreduce`, another `allreduce_async_`.
    """
    arguments = [] if name is None else [f"name={str(name)!r}"]
    if factors != (1.0, 1.0):
        before, after = map(float, factors)
        arguments += [f"prescale_factor={before}", f"postscale_factor={after}"]
    if not arguments:
        return None
    return require_group(caller).compare(_purpose(caller, ", ".join(arguments)))


@functools.lru_cache(maxsize=4096)
def _purpose(caller: str, arguments: str) -> str:
    operation = caller.replace("_async", "").rstrip("_")
    return f"hvd.{operation}({arguments})"
