# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Carries out an operation on device tensors piece by piece, so that three things go on at once.

    bus, to the host    [ 0 ][ 1 ][ 2 ][ 3 ]
    engine                   [ 0 ][ 1 ][ 2 ][ 3 ]
    bus, to the device            [ 0 ][ 1 ][ 2 ][ 3 ]

Three slots of host memory are in use: one is filled, one reduced, one emptied. The engine's part
runs on the calling thread (the group's lane). A slot is filled again as soon as the device has
emptied it, which the device's own streams see to; the host waits only for what the engine is about
to read or write.

Piece 0 starts after what the caller's stream held when the operation was submitted.

Floor for S bytes of all_reduce: S bytes over the bus in each direction at once, or the engine's
time for S bytes, whichever is longer, plus one piece of the others.
"""

from __future__ import annotations

import collections
from typing import Any

from smdistributed.dataparallel.torch.cuda.chunks import Layout, pieces
from smdistributed.dataparallel.torch.cuda.device import Device, Event
from smdistributed.dataparallel.torch.cuda.slots import Slot, Slots
from smdistributed.dataparallel.torch.operation import Operation

__all__ = ["CHUNK_BYTES", "Pipeline"]

CHUNK_BYTES = 4 * 1024 * 1024
"""Host memory per piece: about 0.2 ms of a PCIe 4 bus, many times what queueing a copy costs.
Chosen on paper: to be measured on a GPU."""

_SLOTS = 3


class Pipeline:
    """Staged operations on the tensors of one device. Used by one thread at a time.

    Args:
        device: where the tensors are.
        engine: a `_native.Communicator` whose operations are only started here, in order.
        size: number of ranks in the group.
        chunk_bytes: host memory per piece; the same on all ranks.
    """

    def __init__(self, device: Device, engine: Any, size: int, chunk_bytes: int) -> None:
        self._device = device
        self._engine = engine
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._slots = Slots(engine, device, _SLOTS, chunk_bytes)
        self._to_host = device.stream()
        self._to_device = device.stream()

    def run(self, operation: Operation, after: Event, timeout_s: float) -> Event | None:
        """Carry it out.

        Args:
            operation: checked, on tensors of this device.
            after: the tensors are the operation's from here on.
            timeout_s: for each piece; 0 is the engine's own.

        Returns:
            After this point the outputs are right; None if this rank has none.

        Raises: the engine's errors. Copies may be under way then, within the tensors' lifetimes.
        """
        self._to_host.wait(after)
        self._to_device.wait(after)
        filled: collections.deque[tuple[Operation, Operation, Slot]] = collections.deque()
        try:
            for piece in pieces(operation, self._size, self._chunk_bytes):
                filled.append(self._fill(piece))
                if len(filled) == _SLOTS - 1:
                    self._reduce(*filled.popleft(), timeout_s)
            while filled:
                self._reduce(*filled.popleft(), timeout_s)
        finally:
            for _, _, slot in filled:  # after an error
                self._slots.give_back(slot)
        if not operation.outputs:
            return None
        for target, source in operation.copies:
            self._to_device.copy(target, source)
        return self._to_device.mark()

    def _fill(self, piece: Operation) -> tuple[Operation, Operation, Slot]:
        layout = Layout(piece)
        slot = self._slots.take(layout.size_bytes)
        on_host = layout.on_host(slot.memory)
        try:
            if slot.busy_until is not None:
                self._to_host.wait(slot.busy_until)
            for target, source in zip(on_host.inputs, piece.inputs, strict=True):
                self._to_host.copy(target, source)
            slot.busy_until = self._to_host.mark()
        except BaseException:
            self._slots.give_back(slot)
            raise
        return piece, on_host, slot

    def _reduce(self, piece: Operation, on_host: Operation, slot: Slot, timeout_s: float) -> None:
        assert slot.busy_until is not None
        try:
            slot.busy_until.synchronize()  # filled, or, without inputs, emptied
            on_host.run(self._engine, timeout_s)
            if piece.outputs:
                for target, source in zip(piece.outputs, on_host.outputs, strict=True):
                    self._to_device.copy(target, source)
                slot.busy_until = self._to_device.mark()
        finally:
            self._slots.give_back(slot)

    def release(self) -> None:
        """Give the host memory back. No operation may be under way."""
        self._slots.release()
