# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the staged path needs of an accelerator, and the CUDA implementation.

The protocols are the whole of it, so that the pipeline can be tested without a GPU: a stand-in
(tests/multiprocess/lazy_device.py) carries out its copies as late as the protocols allow, which
turns a forgotten wait into a wrong result.
"""

# The protocols document the methods of what fulfils them.
# ruff: noqa: D102

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CudaDevice", "Device", "Event", "Stream"]


_cuda: Any = torch.cuda  # most of it carries no types


class Event(Protocol):
    """A point in a stream's queue."""

    def synchronize(self) -> None:
        """Block this thread until the stream has come there. Releases the GIL."""

    def query(self) -> bool:
        """Whether it has."""


class Stream(Protocol):
    """A queue of copies, carried out in order, beside whatever else the device does."""

    def wait(self, event: Event) -> None:
        """What is queued from now on starts after `event`."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy between device and pinned memory, or within the device.

        Device memory that the caller lets go of is not reused before the copy is done; host memory
        is the caller's to keep.
        """

    def mark(self) -> Event:
        """The point after all that is queued now."""


class Device(Protocol):
    """One accelerator."""

    future_devices: list[torch.device]
    """What a `torch.futures.Future` of its tensors must be told."""

    def stream(self) -> Stream:
        """A new stream."""

    def mark(self) -> Event:
        """The point after all that the caller's current stream has queued."""

    def wait(self, event: Event) -> None:
        """What the caller queues on its current stream from now on starts after `event`."""

    def pinned(self, nbytes: int) -> Tensor:
        """Host memory for asynchronous copies: uint8, shape `[nbytes]`."""

    def register(self, memory: Tensor) -> bool:
        """Make existing host memory fit for asynchronous copies; False if it cannot be."""

    def unregister(self, memory: Tensor) -> None:
        """Undo `register`; no copy may be under way."""


class CudaStream:
    """A `torch.cuda.Stream` of our own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _cuda.Stream(device)

    def wait(self, event: Any) -> None:
        self._stream.wait_event(event)

    def copy(self, target: Tensor, source: Tensor) -> None:
        with _cuda.stream(self._stream), torch.no_grad():
            target.copy_(source, non_blocking=True)
        for tensor in (target, source):
            if tensor.is_cuda:
                tensor.record_stream(self._stream)

    def mark(self) -> Any:
        # Waiting for a blocking event sleeps instead of spinning: ranks may outnumber cores, and
        # the reductions need them.
        event = _cuda.Event(blocking=True)
        event.record(self._stream)
        return event


class CudaDevice:
    """One GPU. Not yet run on one: docs/cuda.md.

    Args:
        device: with an index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.future_devices = [device]

    def stream(self) -> CudaStream:
        return CudaStream(self._device)

    def mark(self) -> Any:
        event = _cuda.Event(blocking=True)
        event.record(_cuda.current_stream(self._device))
        return event

    def wait(self, event: Any) -> None:
        _cuda.current_stream(self._device).wait_event(event)

    def pinned(self, nbytes: int) -> Tensor:
        # Named, since the script may have made a GPU its default device.
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def register(self, memory: Tensor) -> bool:
        with contextlib.suppress(RuntimeError), _cuda.device(self._device):
            result = _cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
            if int(result) == 0:
                return True
            # CUDA keeps the error, and torch raises it at this thread's next kernel: at this one.
            torch.empty(1, dtype=torch.uint8, device=self._device).fill_(1)
        return False

    def unregister(self, memory: Tensor) -> None:
        with _cuda.device(self._device):
            _cuda.cudart().cudaHostUnregister(memory.data_ptr())
