# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for an engine communicator with an arena, within one process."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from smdistributed.dataparallel.torch.adoption.adopter import Adopter
from smdistributed.dataparallel.torch.adoption.gate import gate


def see(adopter: Adopter, tensor: torch.Tensor) -> None:
    """As a collective of the adopter's group does."""
    with gate.call():
        adopter.see(tensor, "all_reduce")


class EngineWithArena:
    """What an `Adopter` asks an engine for.

    Args:
        transports: of the ranks, as in `topology()`.
        room_bytes: of the arena; nothing that was handed out comes back.

    Attributes:
        sizes: of all that was asked for, in order.
    """

    def __init__(
        self, transports: tuple[str, ...] = ("self", "shm"), room_bytes: int = 1 << 30
    ) -> None:
        self._transports = transports
        self._room_bytes = room_bytes
        self._given: list[tuple[int, int, weakref.ref[Any]]] = []
        self.sizes: list[int] = []

    def topology(self) -> list[dict[str, Any]]:
        return [{"transport": transport} for transport in self._transports]

    def allocate_shared(self, nbytes: int, zeroed: bool = True) -> Any:
        self.sizes.append(nbytes)
        if nbytes > self._room_bytes:
            return None
        self._room_bytes -= nbytes
        memory = np.zeros(nbytes, np.uint8)
        self._given.append((memory.ctypes.data, nbytes, weakref.ref(memory)))
        return memory

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in memory that came from here and is still in use."""
        address = tensor.data_ptr()
        return any(
            begin <= address < begin + nbytes and alive() is not None
            for begin, nbytes, alive in self._given
        )

    @property
    def in_use(self) -> int:
        """Number of pieces that somebody still has."""
        return sum(alive() is not None for _, _, alive in self._given)
