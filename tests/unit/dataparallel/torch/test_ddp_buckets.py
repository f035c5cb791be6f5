# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which allocations are taken for a gradient bucket, and when."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from smdistributed._common.settings import ZeroCopy
from smdistributed.dataparallel.torch import ddp_buckets
from smdistributed.dataparallel.torch.ddp_buckets import SharedBucketReducer, _BucketAllocation
from smdistributed.dataparallel.torch.shared_memory import BUCKET_MIN_BYTES, SharedMemory
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena

_COUNT = BUCKET_MIN_BYTES // 4


@pytest.fixture
def engine() -> EngineWithArena:
    return EngineWithArena()


@pytest.fixture
def memory(engine: EngineWithArena) -> SharedMemory:
    return SharedMemory(engine, ZeroCopy.OWN)


def _allocate(count: int = _COUNT, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(count, dtype=dtype, device="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_a_flat_tensor_of_gradients_is_a_bucket(
    engine: EngineWithArena, memory: SharedMemory, dtype: torch.dtype
) -> None:
    count = BUCKET_MIN_BYTES // dtype.itemsize
    with _BucketAllocation(memory, _allocate).entered():
        bucket = _allocate(count, dtype)
        small = _allocate(count - 1, dtype)
    assert engine.holds(bucket)
    assert not engine.holds(small)
    assert (bucket.shape, bucket.dtype) == ((count,), dtype)


def test_other_allocations_are_left_to_torch(engine: EngineWithArena, memory: SharedMemory) -> None:
    def allocate() -> list[Tensor]:
        return [
            torch.empty(2, _COUNT, dtype=torch.float32, device="cpu"),
            torch.empty(_COUNT, dtype=torch.int32, device="cpu"),
            torch.zeros(_COUNT, dtype=torch.float32, device="cpu"),
            torch.empty(_COUNT, dtype=torch.float32, device="meta"),
        ]

    other_thread: list[Tensor] = []
    with _BucketAllocation(memory, allocate).entered():
        tensors = allocate()
        thread = threading.Thread(target=lambda: other_thread.extend(allocate()))
        thread.start()
        thread.join()
    assert tensors[-1].is_meta
    assert not any(engine.holds(tensor) for tensor in (*tensors, *other_thread))
    assert not engine.sizes


def test_what_other_code_allocates_meanwhile_is_no_bucket(
    engine: EngineWithArena, memory: SharedMemory
) -> None:
    """Handlers of signals, finalizers, and functions that the reducer calls.

    Their flat tensors were once taken for buckets, and could not be resized.
    """
    others: list[Tensor] = []

    class Garbage:
        pass

    def allocate() -> Tensor:
        signal.raise_signal(signal.SIGALRM)
        garbage = Garbage()
        weakref.finalize(garbage, lambda: others.append(_allocate()))
        del garbage
        others.append(_allocate())
        return torch.empty(_COUNT, dtype=torch.float32, device="cpu")

    before = signal.signal(signal.SIGALRM, lambda *about: others.append(_allocate()))
    try:
        with _BucketAllocation(memory, allocate).entered():
            bucket = allocate()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert engine.holds(bucket)
    assert [engine.holds(other) for other in others] == [False] * 3


def test_without_room_or_memory_torch_allocates() -> None:
    narrow = EngineWithArena(room_bytes=BUCKET_MIN_BYTES - 1)
    for memory in (
        SharedMemory(narrow, ZeroCopy.OWN),
        SharedMemory(EngineWithArena(), ZeroCopy.OFF),
        SharedMemory(EngineWithArena(("self", "tcp")), ZeroCopy.OWN),
    ):
        with _BucketAllocation(memory, _allocate).entered():
            bucket = _allocate()
        assert bucket.untyped_storage().resizable()


def test_a_mode_that_was_interrupted_as_it_began_is_left(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = _python_dispatch._push_on_torch_dispatch_stack

    def interrupted(mode: object) -> None:
        push(mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(_python_dispatch, "_push_on_torch_dispatch_stack", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        _BucketAllocation(memory, _allocate).entered(),
    ):
        pass
    assert torch._C._len_torch_dispatch_stack() == 0


def test_threads_that_make_buckets_at_a_time_leave_nothing_behind(memory: SharedMemory) -> None:
    """What torch notes for all threads while a mode is on once stayed if the first left first."""
    is_in, may_go = threading.Event(), threading.Event()

    def other() -> None:
        with _BucketAllocation(memory, _allocate).entered():
            is_in.set()
            may_go.wait(60)

    thread = threading.Thread(target=other)
    with _BucketAllocation(memory, _allocate).entered():
        thread.start()
        assert is_in.wait(60)
    may_go.set()
    thread.join()
    assert not _python_dispatch.is_in_torch_dispatch_mode()
    assert not _python_dispatch.is_in_any_mode_without_ignore_compile_internals()


class _Functions(TorchFunctionMode):  # type: ignore[no-untyped-call]
    """Notes what it sees, and copies it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func.__name__)
        result = func(*args, **(kwargs or {}))
        return result.clone() if isinstance(result, Tensor) else result


def test_modes_of_functions_see_what_they_see_of_torchs_own_reducer(
    engine: EngineWithArena, memory: SharedMemory
) -> None:
    """They once saw the bucket and its views made, and what they made of it took its place."""

    class Reducer(SharedBucketReducer):
        def _use_memory_of(self, group: Any) -> None:
            self._memory = memory

    arguments = ([torch.nn.Parameter(torch.zeros(_COUNT))], [[0]], [1 << 20])
    with _Functions() as ours:
        reducer = Reducer(*arguments, dist.ProcessGroup(0, 1))
    assert engine.in_use == 1
    with _Functions() as torchs:
        ddp_buckets._Plain(*arguments, dist.ProcessGroup(0, 1))
    assert ours.seen == torchs.seen
    del reducer
    assert engine.in_use == 0


def test_a_torch_that_allocates_otherwise_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    ddp_buckets.obstacle.cache_clear()
    with torch.device("meta"):
        assert ddp_buckets.obstacle() is None
    ddp_buckets.obstacle.cache_clear()
    monkeypatch.setattr(ddp_buckets, "_Plain", lambda *arguments: None)
    assert "in another way" in (ddp_buckets.obstacle() or "")
    ddp_buckets.obstacle.cache_clear()


def test_reducers_of_other_groups_are_torchs_own() -> None:
    parameter = torch.nn.Parameter(torch.zeros(_COUNT))
    arguments = ([parameter], [[0]], [1 << 20])
    by_place = SharedBucketReducer(*arguments, dist.ProcessGroup(0, 1))
    by_name = SharedBucketReducer(*arguments, process_group=dist.ProcessGroup(0, 1))
    assert by_place._memory is None
    assert by_name._memory is None
