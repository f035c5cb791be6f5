# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Many small operations as few: torch's coalesced calls and `dist._coalescing_manager`.

A small collective costs its meeting of the ranks, not its bytes. Operations of one kind, dtype and
reduce operation are therefore told to the engine together; it packs their tensors, carries out one
operation and puts the results where they belong (`native/algorithms/coalesce.h`): bit for bit what
one operation after the other gives. Packing copies every byte twice more, so large tensors go
alone.

All ranks bundle alike, because what decides (kind, dtype, sizes, order) is what they must agree on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from smdistributed.dataparallel.torch.operation import Operation
from smdistributed.dataparallel.torch.tensors import address, movable
from smdistributed.dataparallel.torch.work import EngineWork

__all__ = ["Bundle", "Runnable", "coalesce"]

# Bytes of the larger side of an operation that is bundled, and of all operations of one bundle.
_PIECE_BYTES = 32 << 10
_BUNDLE_BYTES = 1 << 20

_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather_single": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
}
"""Kinds that can be bundled, and the engine's names for them."""


class Runnable(Protocol):
    """What an `Operation` and a `Bundle` have in common."""

    @property
    def copies(self) -> Sequence[Any]:
        """What is left to copy once it is complete."""

    def run(self, engine: Any, timeout_s: float) -> None:
        """See `Operation.run`."""

    def start(self, engine: Any, timeout_s: float) -> EngineWork:
        """See `Operation.start`."""

    def copy_back(self) -> None:
        """See `Operation.copy_back`."""


class Bundle:
    """Operations that the engine carries out as one.

    Args:
        operations: at least one; of one kind that can be bundled, one dtype, one reduce operation.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self.copies = [pair for operation in operations for pair in operation.copies]

    def _layout(self) -> dict[str, int]:
        """A digest of the operations' layouts; nothing if all have the usual one."""
        layouts = [operation.layout for operation in self._operations]
        return {"layout": zlib.crc32(repr(layouts).encode())} if any(layouts) else {}

    def run(self, engine: Any, timeout_s: float) -> None:
        """Do it now; returns when all are complete on this rank, copies included."""
        _held = self._memory()
        engine.coalesced_ptr(*self._arguments(), False, timeout_s, **self._layout())
        if self.copies:
            self.copy_back()

    def start(self, engine: Any, timeout_s: float) -> EngineWork:
        """Hand it to the engine, which holds the memory until then; copies are left to others."""
        held = (self._operations, self._memory())
        work: EngineWork = engine.coalesced_ptr(
            *self._arguments(), True, timeout_s, held, **self._layout()
        )
        return work

    def copy_back(self) -> None:
        """Carry out the operations' copies."""
        for operation in self._operations:
            operation.copy_back()

    def _memory(self) -> list[Any]:
        return [operation.memory() for operation in self._operations]

    def _arguments(self) -> tuple[Any, ...]:
        first = self._operations[0]
        dtype, scale = movable(first.dtype)
        inputs = [operation.inputs[0] for operation in self._operations]
        outputs = [operation.outputs[0] for operation in self._operations]
        # The side without a share for each rank.
        shares = outputs if first.kind == "reduce_scatter_single" else inputs
        return (
            _COLLECTIVES[first.kind],
            [address(tensor) for tensor in inputs],
            [address(tensor) for tensor in outputs],
            [tensor.numel() * scale for tensor in shares],
            dtype,
            first.code,
            first.factor,
        )


def coalesce(operations: Sequence[Operation]) -> list[Runnable]:
    """The same operations, small ones of a kind bundled; in the order of the first of each bundle.

    Args:
        operations: checked, independent of each other.
    """
    bundled: list[list[Operation]] = []
    # By what a bundle has in common: the one that is being filled, and its bytes.
    open_bundles: dict[Any, tuple[list[Operation], float]] = {}
    for operation in operations:
        nbytes = _packed_bytes(operation)
        if nbytes > _PIECE_BYTES:
            bundled.append([operation])
            continue
        key = (operation.kind, operation.dtype, operation.code, operation.factor)
        bundle, filled = open_bundles.get(key, ([], math.inf))
        if filled + nbytes > _BUNDLE_BYTES:
            bundle, filled = [], 0
            bundled.append(bundle)
        bundle.append(operation)
        open_bundles[key] = (bundle, filled + nbytes)
    return [bundle[0] if len(bundle) == 1 else Bundle(bundle) for bundle in bundled]


def _packed_bytes(operation: Operation) -> float:
    """Bytes of the larger side; infinite if the operation cannot be bundled."""
    if operation.kind not in _COLLECTIVES:
        return math.inf
    larger = max(operation.inputs[0].numel(), operation.outputs[0].numel())
    return larger * operation.dtype.itemsize
