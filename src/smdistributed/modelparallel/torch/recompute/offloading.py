# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What checkpointed modules keep, their inputs, waits for the backward pass in CPU memory.

An input leaves the GPU when its module has begun, and comes back before it is needed: when one
module recomputes, the inputs of those that will recompute next are on their way already
(`activation_loading_horizon` of them). Copies run beside the computation, on a stream of their own.
Where the device is the CPU there is nothing to do.

What comes next is guessed: within a microbatch modules recompute in the reverse order, and of the
other microbatches the first is the next to go back. A wrong guess costs time only.

Source: modelparallel specification, section 6.4 (`offload_activations`).
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.pipeline import interception

__all__ = ["Offloading", "offloaded_inputs"]


class Offloading:
    """Of one device.

    Args:
        device: whose tensors are copied to CPU memory; tests pass the CPU.
        horizon: inputs of so many modules come back ahead of time.
    """

    def __init__(self, device: torch.device, horizon: int) -> None:
        self.device = device
        self.horizon = horizon
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._kept: list[weakref.ref[_Inputs]] = []

    def inputs(self, microbatch: int) -> saved_tensors_hooks:
        """In this block tensors that are saved for the backward pass go to CPU memory."""
        inputs = _Inputs(self, microbatch)
        self._kept = [reference for reference in self._kept if reference() is not None]
        self._kept.append(weakref.ref(inputs))
        return saved_tensors_hooks(inputs.pack, _unpack)

    def load_next(self, used: _Inputs) -> None:
        """Brings back what is needed after `used`."""
        kept = [each for reference in self._kept if (each := reference()) is not None]
        before = kept[: kept.index(used)]
        following = [each for each in reversed(before) if each.microbatch == used.microbatch]
        others = [each for each in reversed(kept) if each.microbatch != used.microbatch]
        following += sorted(others, key=lambda each: each.microbatch)  # of each the last one first
        for each in following[: self.horizon]:
            each.load()


class _Inputs:
    """Of one module's call. Whoever holds what `pack` returned holds it."""

    def __init__(self, offloading: Offloading, microbatch: int) -> None:
        self._offloading = offloading
        self.microbatch = microbatch
        self._away: list[Tensor] = []
        self._back: list[Tensor] = []

    def pack(self, tensor: Tensor) -> Any:
        if tensor.device != self._offloading.device or isinstance(tensor, nn.Parameter):
            return tensor
        self._away.append(self._to_cpu(tensor.detach()))
        return self, len(self._away) - 1

    def unpack(self, number: int) -> Tensor:
        self.load()
        if self._offloading.stream is not None:
            current = torch.cuda.current_stream(self._offloading.device)
            current.wait_stream(self._offloading.stream)
            self._back[number].record_stream(current)
        self._offloading.load_next(self)
        return self._back[number]

    def load(self) -> None:
        """Begins to bring it back, if nobody has."""
        if not self._back:
            with torch.cuda.stream(self._offloading.stream):
                device = self._offloading.device
                self._back = [each.to(device, non_blocking=True) for each in self._away]

    def _to_cpu(self, tensor: Tensor) -> Tensor:
        stream = self._offloading.stream
        if stream is None:
            return tensor.clone()
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            copy.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)  # its memory is not used again before
        return copy


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    inputs, number = packed
    tensor: Tensor = inputs.unpack(number)
    return tensor


_offloading: Offloading | None = None


def offloaded_inputs() -> contextlib.AbstractContextManager[Any]:
    """What is saved in this block goes to CPU memory, if `offload_activations` says so.

    Not within another checkpoint, which keeps nothing that is computed in it, nor where the script
    has hooks of its own.
    """
    global _offloading
    if not state.initialized or not state.cfg.offload_activations:
        return contextlib.nullcontext()
    device, horizon = state.device, state.cfg.activation_loading_horizon
    if device.type != "cuda" or _has_hooks():
        return contextlib.nullcontext()
    if _offloading is None or (_offloading.device, _offloading.horizon) != (device, horizon):
        _offloading = Offloading(device, horizon)
    return _offloading.inputs(interception.microbatch())


def _has_hooks() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
