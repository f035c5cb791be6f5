# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's shared memory as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from smdistributed._common.settings import ZeroCopy
from smdistributed.dataparallel.torch.adoption.marks import OURS, REFUSED, mark
from smdistributed.dataparallel.torch.adoption.rules import Refusal
from smdistributed.dataparallel.torch.adoption.statistics import (
    Origin,
    count_refused,
    count_shared,
)
from smdistributed.dataparallel.trace import recorder

__all__ = ["BUCKET_MIN_BYTES", "SharedMemory", "allocate_shared", "reaches_all_ranks"]

BUCKET_MIN_BYTES: Final = 64 << 10
"""Smaller gradient buckets stay in ordinary memory: a copy of them costs next to nothing."""


def allocate_shared(engine: Any, nbytes: int, *, zeroed: bool = True) -> Tensor | None:
    """Memory of a `_native.Communicator` in which collectives work without a copy.

    Not a collective: a rank may call it alone. The memory lives as long as the tensor or any view
    of its storage, also beyond the communicator.

    Returns:
        uint8 of shape `[nbytes]`, on the CPU, 128-byte aligned, zeros unless they are not wanted
        (clearing 25 MiB takes milliseconds); or None where there is none to be had (one rank,
        several hosts, TCP, no room left): use ordinary memory then.
    """
    buffer = engine.allocate_shared(nbytes, zeroed)
    if buffer is None:
        return None
    tensor: Tensor = from_dlpack(buffer)
    mark(tensor.untyped_storage(), OURS)
    return tensor


def reaches_all_ranks(engine: Any) -> bool:
    """Whether all ranks are on this host, reach each other's memory, and are several."""
    transports = [rank["transport"] for rank in engine.topology()]
    return len(transports) > 1 and all(transport in ("self", "shm") for transport in transports)


class SharedMemory:
    """What one group gives to torch of the memory that its ranks share.

    Args:
        engine: the group's `_native.Communicator`.
        zero_copy: with `OFF` it gives none.

    Attributes:
        is_available: whether there is such memory; it may have no room left.

    Thread rule: any thread. No method is a collective.
    """

    def __init__(self, engine: Any, zero_copy: ZeroCopy) -> None:
        self._engine = engine
        self.is_available = zero_copy is not ZeroCopy.OFF and reaches_all_ranks(engine)

    def allocate(
        self, nbytes: int, *, zeroed: bool = True, origin: Origin = Origin.ALLOCATED
    ) -> Tensor | None:
        """As `allocate_shared`, counted as being of `origin`. None too if `nbytes` is 0."""
        if not self.is_available or nbytes == 0:
            return None
        tensor = allocate_shared(self._engine, nbytes, zeroed=zeroed)
        if tensor is None:
            count_refused(Refusal.NO_ROOM.value)
        else:
            count_shared(origin, nbytes)
        return tensor

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor, not initialized; in ordinary memory if there is no other."""
        shared = self.allocate(math.prod(shape) * dtype.itemsize, zeroed=False)
        return _ordinary(shape, dtype) if shared is None else _of_memory(shared, shape, dtype)

    def bucket(self, size: int, dtype: torch.dtype) -> Tensor | None:
        """Memory for a gradient bucket of shape `[size]`, not initialized.

        None if torch is to allocate it: the bucket is small, or there is no such memory.
        """
        nbytes = size * dtype.itemsize
        if nbytes < BUCKET_MIN_BYTES or not self.is_available:
            return None
        with recorder.span("bucket", "zero copy", bytes=nbytes):
            shared = self.allocate(nbytes, zeroed=False, origin=Origin.BUCKET)
        if shared is not None:
            return _of_memory(shared, (size,), dtype)
        ordinary = _ordinary((size,), dtype)
        mark(ordinary.untyped_storage(), REFUSED)  # so that nobody advises to share it
        return ordinary


def _ordinary(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")  # whatever torch's default device is


def _of_memory(memory: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor with the memory of another one: for autograd one of its own.

    Not a view, which can neither be detached in place nor, made without gradients, be written to
    with them.
    """
    strides = [math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    return tensor.set_(memory.untyped_storage(), 0, shape, strides)
