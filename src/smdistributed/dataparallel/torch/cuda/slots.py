# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The host memory that pieces pass through: a few slots per group, made once and reused.

A slot lies in the engine's shared memory if that can be had and the device accepts it: then the
ranks of a host reduce directly out of each other's slots. Otherwise it is ordinary pinned memory.
What is too large for a slot (an operation that cannot be cut) gets pinned memory for that time;
torch's allocator keeps and reuses such blocks.
"""

from __future__ import annotations

import collections
from typing import Any

from torch import Tensor

from smdistributed.dataparallel.torch.cuda.device import Device, Event
from smdistributed.dataparallel.torch.shared_memory import allocate_shared

__all__ = ["Slot", "Slots"]


class Slot:
    """A piece of host memory, and the last copy that was queued from or to it."""

    def __init__(self, memory: Tensor, *, is_kept: bool) -> None:
        self.memory = memory
        self.is_kept = is_kept
        self.busy_until: Event | None = None


class Slots:
    """At most `count` slots are in use at a time; one thread takes and returns them.

    Args:
        engine: a `_native.Communicator`, asked for shared memory.
        device: whose copies use them.
        count: number of slots.
        slot_bytes: size of each.
    """

    def __init__(self, engine: Any, device: Device, count: int, slot_bytes: int) -> None:
        self._engine = engine
        self._device = device
        self._count = count
        self._slot_bytes = slot_bytes
        self._idle: collections.deque[Slot] = collections.deque()
        self._registered: list[Slot] = []
        self._made = 0

    def take(self, nbytes: int) -> Slot:
        """A slot of at least this size; its last copy may still be under way."""
        if nbytes > self._slot_bytes:
            return Slot(self._device.pinned(nbytes), is_kept=False)
        if self._made < self._count:
            slot = self._make()
            self._made += 1  # only now: what could not be made must not be waited for
            return slot
        return self._idle.popleft()

    def give_back(self, slot: Slot) -> None:
        """`busy_until` must say until when its memory is in use."""
        if slot.is_kept:
            self._idle.append(slot)

    def release(self) -> None:
        """Give the memory back; waits for the copies that use it. No slot may be in use."""
        for slot in self._registered:
            if slot.busy_until is not None:
                slot.busy_until.synchronize()
            self._device.unregister(slot.memory)
        self._registered.clear()
        self._idle.clear()
        self._made = 0

    def _make(self) -> Slot:
        shared = allocate_shared(self._engine, self._slot_bytes, zeroed=False)
        if shared is not None and self._device.register(shared):
            slot = Slot(shared, is_kept=True)
            self._registered.append(slot)
            return slot
        return Slot(self._device.pinned(self._slot_bytes), is_kept=True)
