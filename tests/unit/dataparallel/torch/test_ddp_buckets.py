# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which allocations are taken for a gradient bucket, and when."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

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
def allocation(engine: EngineWithArena) -> _BucketAllocation:
    return _BucketAllocation(SharedMemory(engine, ZeroCopy.OWN))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_a_flat_tensor_of_gradients_is_a_bucket(
    engine: EngineWithArena, allocation: _BucketAllocation, dtype: torch.dtype
) -> None:
    with allocation:
        bucket = torch.empty(BUCKET_MIN_BYTES // dtype.itemsize, dtype=dtype, device="cpu")
        small = torch.empty(BUCKET_MIN_BYTES // dtype.itemsize - 1, dtype=dtype, device="cpu")
    assert engine.holds(bucket)
    assert not engine.holds(small)
    assert (bucket.shape, bucket.dtype) == ((BUCKET_MIN_BYTES // dtype.itemsize,), dtype)


def test_other_allocations_are_left_to_torch(
    engine: EngineWithArena, allocation: _BucketAllocation
) -> None:
    other_thread: list[torch.Tensor] = []
    with allocation:
        tensors = [
            torch.empty(2, _COUNT, dtype=torch.float32, device="cpu"),
            torch.empty(_COUNT, dtype=torch.int32, device="cpu"),
            torch.zeros(_COUNT, dtype=torch.float32, device="cpu"),
        ]
        meta = torch.empty(_COUNT, dtype=torch.float32, device="meta")
        thread = threading.Thread(
            target=lambda: other_thread.append(torch.empty(_COUNT, device="cpu"))
        )
        thread.start()
        thread.join()
    assert meta.is_meta
    assert not any(engine.holds(tensor) for tensor in (*tensors, *other_thread))
    assert not engine.sizes


def test_without_room_or_memory_torch_allocates() -> None:
    narrow = EngineWithArena(room_bytes=BUCKET_MIN_BYTES - 1)
    for memory in (
        SharedMemory(narrow, ZeroCopy.OWN),
        SharedMemory(EngineWithArena(), ZeroCopy.OFF),
        SharedMemory(EngineWithArena(("self", "tcp")), ZeroCopy.OWN),
    ):
        with _BucketAllocation(memory):
            bucket = torch.empty(_COUNT, dtype=torch.float32, device="cpu")
        assert bucket.untyped_storage().resizable()


def test_a_torch_that_allocates_otherwise_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    ddp_buckets.obstacle.cache_clear()
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
