# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What tensors in the engine's shared memory are to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smdistributed._common.settings import ZeroCopy
from smdistributed.dataparallel.torch.shared_memory import SharedMemory
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena

_COUNT = 1 << 15

Make = Callable[[SharedMemory], Tensor | None]

MAKERS: dict[str, Make] = {
    "bucket": lambda memory: memory.bucket(_COUNT, torch.float32),
    "empty": lambda memory: memory.empty((_COUNT,), torch.float32),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_they_are_on_the_cpu_whatever_the_default_device_is(make: Make) -> None:
    """Without room they once were on the default device, where gradients could not be put."""
    for room_bytes in (1 << 30, 0):
        engine = EngineWithArena(room_bytes=room_bytes)
        with torch.device("meta"):
            tensor = make(SharedMemory(engine, ZeroCopy.OWN))
        assert tensor is not None
        assert tensor.is_cpu
        assert engine.holds(tensor) == (room_bytes > 0)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_they_are_tensors_of_their_own_and_no_views(make: Make) -> None:
    """They were views once, which cannot be detached in place, nor written to as is done here."""
    engine = EngineWithArena()
    with torch.no_grad():
        tensor = make(SharedMemory(engine, ZeroCopy.OWN))
    assert tensor is not None
    assert engine.holds(tensor)
    assert not tensor._is_view()
    tensor.detach_()
    weight = torch.ones(_COUNT, requires_grad=True)
    tensor.copy_(weight).mul_(3).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad[0]) == 3


def test_the_shape_is_that_of_torch_empty() -> None:
    memory = SharedMemory(EngineWithArena(), ZeroCopy.OWN)
    for shape in ((3, 4, 5), (), (7,), (2, 0, 3), (1, 1)):
        tensor, ordinary = memory.empty(shape, torch.complex64), torch.empty(shape)
        assert (tensor.shape, tensor.stride()) == (ordinary.shape, ordinary.stride())
        assert tensor.dtype == torch.complex64
        assert tensor.storage_offset() == 0
