# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sees the tensors that go into a group's collectives, and moves the storages that recur.

The first time a storage is seen it is marked; the second time it is moved, if the rules allow;
after that it costs one look at the mark. Gradients that are made anew in every step are never
moved: moving costs more than one collective saves.

Ranks need not move together. The engine does without a copy when all ranks' buffers are shared, and
says so with each operation; until then it stages as always.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any, Final

import torch
from torch import Tensor

from smdistributed.dataparallel.torch.adoption.marks import (
    ADOPTED,
    IN_PARTS,
    REFUSED,
    SEEN,
    mark,
    mark_of,
)
from smdistributed.dataparallel.torch.adoption.rules import MIN_BYTES, Refusal, covers, find_refusal
from smdistributed.dataparallel.torch.adoption.statistics import count_adopted, count_refused
from smdistributed.dataparallel.torch.shared_memory import allocate_shared
from smdistributed.dataparallel.trace import recorder

__all__ = ["Adopter", "obstacle"]

_LARGEST_ELEMENT_BYTES: Final = 16
_NEVER: Final = sys.maxsize

# A storage may be in collectives of two groups on two threads.
_moving = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: the thread that held the lock may not exist here."""
    global _moving
    _moving = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@functools.cache
def obstacle() -> str | None:
    """Why no storage at all can be moved in this process, or None if they can."""
    private, other = (torch.empty(16, dtype=torch.uint8).untyped_storage() for _ in range(2))
    before = private.data_ptr(), other.data_ptr()
    swap = getattr(private, "_swap_data_ptr_", None)
    if swap is None:
        return f"torch {torch.__version__} cannot exchange the memory of two storages"
    swap(other)
    if (other.data_ptr(), private.data_ptr()) != before:
        return f"torch {torch.__version__} exchanges the memory of two storages in another way"
    return None


class Adopter:
    """Moves what recurs in one group.

    Args:
        engine: the group's `_native.Communicator`.
        is_wanted: `SMDDP_ZERO_COPY`.

    Attributes:
        from_elements: tensors with fewer elements need not be shown; more than any tensor has
            where nothing can be moved.

    Thread rule: any thread may call; a storage is moved by one at a time.
    """

    def __init__(self, engine: Any, is_wanted: bool) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self.is_possible = is_wanted and obstacle() is None and _shares_memory(engine)
        self.from_elements = MIN_BYTES // _LARGEST_ELEMENT_BYTES if self.is_possible else _NEVER

    def see(self, tensor: Tensor) -> None:
        """Note that a tensor is about to go into a collective; move its storage if it recurs.

        Args:
            tensor: dense, on the CPU, with at least `from_elements` elements. Its address may be
                another one afterwards.
        """
        storage = tensor.untyped_storage()
        known = mark_of(storage)
        if known is ADOPTED or known is REFUSED or tensor.nbytes < MIN_BYTES:
            return
        if not covers(tensor, storage):
            if known is None:
                mark(storage, IN_PARTS)
                _tell(storage, Refusal.PART)
            return
        if known is None or known is IN_PARTS:
            mark(storage, SEEN)
            return
        with _moving:
            known = mark_of(storage)
            if known is not ADOPTED and known is not REFUSED:
                self._settle(tensor, storage, known)

    def _settle(self, tensor: Tensor, storage: torch.UntypedStorage, known: Any) -> None:
        refusal = known if isinstance(known, Refusal) else self._check(tensor, storage)
        if refusal is None:
            with recorder.span("adopt", "zero copy", bytes=storage.nbytes()):
                refusal = self._move(storage)
        if refusal is None:
            mark(storage, ADOPTED)
            count_adopted(storage.nbytes())
            return
        if not refusal.passes:
            mark(storage, REFUSED)
        _tell(storage, refusal)

    def _check(self, tensor: Tensor, storage: torch.UntypedStorage) -> Refusal | None:
        return Refusal.FORKED if os.getpid() != self._pid else find_refusal(tensor, storage)

    def _move(self, storage: torch.UntypedStorage) -> Refusal | None:
        shared = allocate_shared(self._engine, storage.nbytes(), zeroed=False)
        if shared is None:
            return Refusal.NO_ROOM
        other = shared.untyped_storage()
        other.copy_(storage, False)
        storage._swap_data_ptr_(other)  # type: ignore[attr-defined]
        return None


def _tell(storage: torch.UntypedStorage, refusal: Refusal) -> None:
    count_refused(refusal.value)
    with recorder.span("not adopted", "zero copy", bytes=storage.nbytes(), reason=refusal.value):
        pass


def _shares_memory(engine: Any) -> bool:
    """Whether all ranks are on this host, reach each other's memory, and are several."""
    transports = [rank["transport"] for rank in engine.topology()]
    return len(transports) > 1 and all(transport in ("self", "shm") for transport in transports)
