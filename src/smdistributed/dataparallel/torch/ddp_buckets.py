# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradient buckets of torch's `DistributedDataParallel`, born in memory that the ranks share.

DDP makes a `dist.Reducer`, whose C++ code allocates the buckets in two places: its constructor, and
`_rebuild_buckets`, which replaces them after the first backward. A class derived from it runs
these two, and nothing else, inside a dispatch mode that answers the reducer's `at::empty` with
memory of the process group. Other code may run in there on this thread: handlers of signals,
finalizers of garbage, the broadcast by which `_rebuild_buckets` agrees with the other ranks. It is
Python, so it has a frame, and an allocation is answered only if the innermost frame is the derived
class's own: what is answered is a bucket and never a user's tensor. Nobody can hold an address in a
bucket that has yet to be made. Where there is no such memory, the reducer gets ordinary memory as
ever.

torch 2.13 asks a group for the memory of its buckets too, but only groups written in C++.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.utils import _python_dispatch

from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp
from smdistributed.dataparallel.torch.shared_memory import SharedMemory

__all__ = ["SharedBucketReducer", "install", "obstacle"]

_GROUP_POSITION = 3  # among the arguments of `Reducer`, which torch names `process_group`

_TORCH = os.path.dirname(torch.__file__)
_WRAPPERS = {os.path.join(_TORCH, "_compile.py"), os.path.join(_TORCH, "_dynamo", "eval_frame.py")}
"""Where torch defines the functions that it wraps a mode's `__torch_dispatch__` into."""

_Plain: Any = getattr(dist, "Reducer", object)


class _BucketAllocation(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers allocations that look like a bucket: flat, on the CPU, of a type of gradients.

    Args:
        memory: where they come from.
        owner: the function of this file that calls the reducer; what others allocate is left alone.

    Attributes:
        answered: allocations that got an answer.
    """

    def __init__(self, memory: SharedMemory, owner: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._owner = owner.__code__
        self.answered = 0

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """In place of `with mode`, which besides sets variables of the whole process.

        Threads that make buckets at a time would leave those set. Nor would `with` leave a mode
        that Ctrl-C interrupts while it is entered.
        """
        try:
            _python_dispatch._push_mode(self)
            yield
        finally:
            if _python_dispatch._get_current_dispatch_mode() is self:
                _python_dispatch._pop_mode()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():  # its modes do not see what C++ does
            if func is torch.ops.aten.empty.memory_format and self._is_owners(sys._getframe(1)):
                bucket = self._bucket(*args, **(kwargs or {}))
                if bucket is not None:
                    self.answered += 1
                    return bucket
            return func(*args, **(kwargs or {}))

    def _is_owners(self, frame: FrameType | None) -> bool:
        """Whether the Python code that C++ was called from is the owner."""
        while frame is not None and frame.f_code.co_filename in _WRAPPERS:
            frame = frame.f_back
        return frame is not None and frame.f_code is self._owner

    def _bucket(
        self,
        size: list[int],
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor | None:
        if (
            len(size) != 1
            or dtype is None
            or not (dtype.is_floating_point or dtype.is_complex)
            or device is None
            or device.type != "cpu"
            or layout not in (None, torch.strided)
            or pin_memory
            or memory_format not in (None, torch.contiguous_format)
        ):
            return None
        return self._memory.bucket(size[0], dtype)


class SharedBucketReducer(_Plain):  # type: ignore[misc]
    """`dist.Reducer` with its buckets in the shared memory of an `smddp` group of one host.

    Takes what `dist.Reducer` takes, for groups of any backend. It stands in its place as
    `torch.distributed.Reducer`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._has_new_buckets = False  # since they can be rebuilt, which torch does once
        self._use_memory_of(
            args[_GROUP_POSITION] if len(args) > _GROUP_POSITION else kwargs.get("process_group")
        )
        with self._allocation(SharedBucketReducer.__init__):
            super().__init__(*args, **kwargs)

    # torch would trace these: they are Python now, and called by code that it does not trace.
    @_disable_dynamo
    def _rebuild_buckets(self) -> bool:
        if self._has_new_buckets:
            return bool(super()._rebuild_buckets())
        self._has_new_buckets = self._rebuild()
        return self._has_new_buckets

    def _rebuild(self) -> bool:  # apart, since the code of the other is that of torch's wrapper
        with self._allocation(SharedBucketReducer._rebuild):
            return bool(super()._rebuild_buckets())

    @_disable_dynamo
    def _reset_state(self) -> None:
        self._has_new_buckets = False
        super()._reset_state()

    @_disable_dynamo
    def _update_process_group(self, process_group: Any) -> None:
        self._use_memory_of(process_group)
        super()._update_process_group(process_group)

    def _use_memory_of(self, group: Any) -> None:
        is_ours = isinstance(group, ProcessGroupSmddp) and group.shared_memory.is_available
        self._memory = group.shared_memory if is_ours else None

    def _allocation(self, owner: Any) -> contextlib.AbstractContextManager[Any]:
        # Under another mode (fake tensors, a tracer) a bucket is what that mode makes of it.
        if self._memory is None or torch._C._len_torch_dispatch_stack() > 0:
            return contextlib.nullcontext()
        return _BucketAllocation(self._memory, owner).entered()


def install() -> None:
    """Let `DistributedDataParallel` use it; once per process."""
    if _Plain is not object:
        namespace: Any = dist  # torch's stubs do not list it there
        namespace.Reducer = SharedBucketReducer


@functools.cache
def obstacle() -> str | None:
    """Why this torch's buckets cannot be born in shared memory, or None if they can."""
    if _Plain is object:
        return f"torch {torch.__version__} has no torch.distributed.Reducer"

    class Ordinary(SharedMemory):
        def __init__(self) -> None:
            pass

        def bucket(self, size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device="cpu")

    def make() -> None:
        _Plain([parameter], [[0]], [1 << 20], dist.ProcessGroup(0, 1))  # type: ignore[call-arg]

    allocation = _BucketAllocation(Ordinary(), make)
    parameter = torch.nn.Parameter(torch.zeros(2, device="cpu"))
    with allocation.entered():
        make()
    if allocation.answered != 1:
        return f"torch {torch.__version__} allocates gradient buckets in another way"
    return None
