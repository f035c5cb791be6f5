# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`SMDDP_CPU_SHIM=full`: events, streams and other calls that scripts make around their training.

On the CPU an operation has happened when its call returns. So an event happens when it is recorded,
the time between two events is the time between their recordings, every stream is the one order of
the program, and there is nothing to synchronise with. All of these raise without CUDA, so that
nobody, library or user, can be using them for anything else.

`torch.cuda.Event` and `torch.cuda.Stream` stay the classes that they are, for libraries that look
at them; only what calling them gives is ours.

Source: specification, section 4.6 (our choice within it).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.cuda import memory, random, streams

from smdistributed.dataparallel.torch.notices import inform_once
from smdistributed.dataparallel.torch.shims.patches import Patches

__all__ = ["HostEvent", "HostStream", "install"]


class HostEvent:
    """A moment of this process, with the methods of `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False, *args: Any, **kwargs: Any) -> None:
        self._is_timed = enable_timing
        self._recorded_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        """Makes this the moment."""
        self._recorded_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Milliseconds from this moment to that of `end_event`.

        Raises:
            RuntimeError: one of the two was made without timing, or not recorded.
        """
        for title, event in (("the first", self), ("the second", end_event)):
            if not event._is_timed or event._recorded_ns is None:
                state = "not recorded" if event._is_timed else "made without enable_timing=True"
                raise RuntimeError(
                    f"elapsed_time: {title} event was {state}; expected two recorded events with"
                    " timing. Make both with enable_timing=True and call record() on each."
                )
        assert self._recorded_ns is not None
        assert end_event._recorded_ns is not None
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    def query(self) -> bool:
        """True: what came before the moment has been done."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def wait(self, stream: Any = None) -> None:
        """Returns at once."""


class HostStream:
    """The order of the program, with the methods of `torch.cuda.Stream`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")
        self.cuda_stream = 0
        self.priority = 0

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Records `event`, or a new one."""
        event = HostEvent() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """True: what was submitted has been done."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def wait_event(self, event: Any) -> None:
        """Returns at once."""

    def wait_stream(self, stream: Any) -> None:
        """Returns at once."""

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def install(patches: Patches) -> None:
    """Replaces what raises without CUDA."""
    patches.replace(streams.Event, "__new__", staticmethod(_new_event))
    patches.replace(streams.Stream, "__new__", staticmethod(_new_stream))
    current = HostStream()
    for name in ("current_stream", "default_stream"):
        patches.replace(torch.cuda, name, _returning(current))
    # `with torch.cuda.stream(s):`
    patches.replace(torch.cuda.StreamContext, "__enter__", _nothing)
    patches.replace(torch.cuda.StreamContext, "__exit__", _nothing)
    # `with torch.cuda.device(n):`; these two functions are all that it does.
    for name in ("_exchange_device", "_maybe_exchange_device"):
        patches.replace(torch.cuda, name, _returning(-1))
    for name in ("init", "ipc_collect", "set_stream", "synchronize"):
        patches.replace(torch.cuda, name, _nothing)
    # The functions for the peaks call this one by its name in `memory`.
    for name in ("reset_peak_memory_stats", "set_per_process_memory_fraction"):
        patches.replace(memory, name, _nothing)
        patches.replace(torch.cuda, name, _nothing)
    # Into a checkpoint, and from there into set_rng_state, which does nothing without CUDA.
    for module in (random, torch.cuda):
        patches.replace(module, "get_rng_state", _get_rng_state)
    patches.replace(torch.Tensor, "record_stream", _nothing)


def _new_event(cls: type, *args: Any, **kwargs: Any) -> HostEvent:
    inform_once("Event", "torch.cuda.Event measures the time of the CPU")
    return HostEvent(*args, **kwargs)


def _new_stream(cls: type, *args: Any, **kwargs: Any) -> HostStream:
    inform_once("Stream", "torch.cuda.Stream is the order of the program: there is no CUDA here")
    return HostStream()


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _returning(value: Any) -> Callable[..., Any]:
    def return_value(*args: Any, **kwargs: Any) -> Any:
        return value

    return return_value


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return torch.get_rng_state()
