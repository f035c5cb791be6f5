# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The slots of the CUDA path where memory cannot be had."""

from __future__ import annotations

import pytest
import torch

from smdistributed.dataparallel.torch.cuda import slots as module
from smdistributed.dataparallel.torch.cuda.slots import Slots


class ScarceDevice:
    """Its first allocation fails."""

    def __init__(self) -> None:
        self.attempts = 0

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.attempts += 1
        if self.attempts == 1:
            raise RuntimeError("out of pinned memory")
        return torch.empty(nbytes, dtype=torch.uint8)


def test_a_slot_that_could_not_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "allocate_shared", lambda engine, nbytes, zeroed: None)
    slots = Slots(None, ScarceDevice(), 1, 64)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="out of pinned memory"):
        slots.take(64)
    slot = slots.take(64)
    assert slot.memory.numel() == 64
    slots.give_back(slot)
    assert slots.take(64) is slot
