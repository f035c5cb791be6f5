# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sees the tensors that go into a group's collectives, and moves the storages that recur.

The first time a storage is seen it is marked; the second time it is moved, if the rules allow;
after that it costs one look at the mark. Gradients that are made anew in every step are never
moved: moving costs more than one collective saves.

A storage moves only while no call of ours but the one at hand is inside the gate and no operation
on it is under way. Its old memory stays as long as the storage itself: torch promises as much to
everybody who has noted an address, and readers that we cannot see rely on it.

Ranks need not move together. The engine does without a copy when all ranks' buffers are shared, and
says so with each operation; until then it stages as always.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Final

import torch
from torch import Tensor

from smdistributed.dataparallel.torch.adoption.gate import gate
from smdistributed.dataparallel.torch.adoption.marks import (
    IN_PARTS,
    OURS,
    REFUSED,
    SEEN,
    keep,
    mark,
    mark_of,
)
from smdistributed.dataparallel.torch.adoption.rules import (
    MIN_BYTES,
    Refusal,
    covers,
    find_refusal,
    viewers,
)
from smdistributed.dataparallel.torch.adoption.statistics import (
    Origin,
    count_refused,
    count_shared,
)
from smdistributed.dataparallel.torch.shared_memory import allocate_shared
from smdistributed.dataparallel.trace import recorder

__all__ = ["Adopter", "obstacle"]

_LARGEST_ELEMENT_BYTES: Final = 16


@functools.cache
def obstacle() -> str | None:
    """Why no storage at all can be moved in this process, or None if they can."""
    tensors = [torch.empty(16, dtype=torch.uint8) for _ in range(2)]
    private, other = (tensor.untyped_storage() for tensor in tensors)
    before = private.data_ptr(), other.data_ptr()
    swap = getattr(private, "_swap_data_ptr_", None)
    if swap is None:
        return f"torch {torch.__version__} cannot exchange the memory of two storages"
    swap(other)
    if (other.data_ptr(), private.data_ptr()) != before:
        return f"torch {torch.__version__} exchanges the memory of two storages in another way"
    alone = viewers(private)
    view = tensors[0].detach()
    if alone != 1 or viewers(private) != 2:
        return f"torch {torch.__version__} does not tell how many tensors view a storage"
    del view
    return None


class Adopter:
    """Moves what recurs in one group whose ranks have memory in common.

    Args:
        engine: the group's `_native.Communicator`.

    Attributes:
        from_elements: tensors with fewer elements need not be shown.

    Thread rule: any thread may call, inside `gate.call()`; a storage is moved by one at a time.
    """

    from_elements = MIN_BYTES // _LARGEST_ELEMENT_BYTES

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._pid = os.getpid()

    def see(self, tensor: Tensor, collective: str) -> None:
        """Note that a tensor is about to go into a collective; move its storage if it recurs.

        Args:
            tensor: dense, on the CPU, with at least `from_elements` elements. Its address may be
                another one afterwards.
            collective: the kind of `Operation`; all kinds count.
        """
        storage = tensor.untyped_storage()
        known = mark_of(storage)
        if known is OURS or known is REFUSED or tensor.nbytes < MIN_BYTES:
            return
        if not covers(tensor, storage):
            if known is None:
                mark(storage, IN_PARTS)
                _tell(storage, Refusal.PART)
            return
        if known is None or known is IN_PARTS:
            mark(storage, SEEN)
            return
        with gate.alone() as is_alone:
            refusal = self._settle(tensor, storage) if is_alone else Refusal.IN_USE
        if refusal is not None:
            _tell(storage, refusal)

    def _settle(self, tensor: Tensor, storage: torch.UntypedStorage) -> Refusal | None:
        """Move it, or say why it stays. No other call of ours runs meanwhile."""
        known = mark_of(storage)  # another thread may have been faster
        if known is OURS or known is REFUSED:
            return None
        refusal = known if isinstance(known, Refusal) else self._check(tensor, storage)
        if refusal is None:
            with recorder.span("adopt", "zero copy", bytes=storage.nbytes()):
                refusal = self._move(storage)
        if refusal is None:
            count_shared(Origin.ADOPTED, storage.nbytes())
            mark(storage, OURS)
        elif not refusal.passes:
            mark(storage, REFUSED)
        return refusal

    def _check(self, tensor: Tensor, storage: torch.UntypedStorage) -> Refusal | None:
        return Refusal.FORKED if os.getpid() != self._pid else find_refusal(tensor, storage)

    def _move(self, storage: torch.UntypedStorage) -> Refusal | None:
        shared = allocate_shared(self._engine, storage.nbytes(), zeroed=False)
        if shared is None:
            return Refusal.NO_ROOM
        other = shared.untyped_storage()
        other.copy_(storage, False)
        storage._swap_data_ptr_(other)  # type: ignore[attr-defined]
        keep(storage, other)
        return None


def _tell(storage: torch.UntypedStorage, refusal: Refusal) -> None:
    count_refused(refusal.value)
    with recorder.span("not adopted", "zero copy", bytes=storage.nbytes(), reason=refusal.value):
        pass
