# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""When the memory of a storage may be exchanged: if nobody has its address but torch.

Whoever noted the address would go on to read old values, and to write what nobody reads. torch
knows about most of them: a storage whose memory somebody else owns, or on which `.numpy()` was ever
called, is not `resizable()`, and torch does not move those itself. What it does not know is noted
by `watch`, or asked of the engine. A storage that several tensors view stays too: one of them may
be a parameter, whose `.data` is a tensor like any other.

Source: our choice; docs/zero_copy.md, "moving what recurs".
"""

from __future__ import annotations

import enum
from typing import Final

import torch
from torch import Tensor

from smdistributed.collectives import _native

__all__ = ["MIN_BYTES", "Refusal", "covers", "find_refusal", "viewers"]

MIN_BYTES: Final = 64 << 10
"""Smaller storages stay: what there is to win is less than the time to ask."""

_PLAIN_TYPES: Final = (Tensor, torch.nn.Parameter)


class Refusal(enum.Enum):
    """Why a storage that recurs stays where it is. The value is what statistics and traces say."""

    SUBCLASS = "a subclass of Tensor"
    PARAMETER = "a parameter, or another leaf that requires grad"
    PART = "the tensor is a part of its storage"
    FOREIGN = "NumPy or another library has its memory"
    SHARED = "a mapped file, or shared between processes by torch"
    PINNED = "pinned"
    COPY_ON_WRITE = "copy-on-write"
    EXPORTED = "exported through DLPack"
    RESIZED = "its storage was resized"
    NO_ROOM = "no room in shared memory"
    VIEWED = "several tensors view its memory"
    IN_USE = "an operation on it is under way"
    TRACED = "inside a trace or a dispatch mode"
    FORKED = "in a forked child"

    @property
    def passes(self) -> bool:
        """Whether the same storage may be moved at a later call."""
        return self in _PASSING


_PASSING: Final = frozenset(
    (Refusal.PART, Refusal.VIEWED, Refusal.IN_USE, Refusal.TRACED, Refusal.FORKED)
)


def covers(tensor: Tensor, storage: torch.UntypedStorage) -> bool:
    """Whether a dense tensor is all there is in its storage. What else is would be moved along."""
    return tensor.storage_offset() == 0 and tensor.nbytes == storage.nbytes()


def viewers(storage: torch.UntypedStorage) -> int:
    """How many tensors view a storage; those that autograd and C++ hold count."""
    holders: int = torch._C._storage_Use_Count(storage._cdata)
    return holders - 1  # the Python object at hand


def find_refusal(tensor: Tensor, storage: torch.UntypedStorage) -> Refusal | None:
    """The first rule that forbids to exchange the memory of `storage` now; None if none does.

    Args:
        tensor: dense, on the CPU.
        storage: the tensor's, which it covers.
    """
    if type(tensor) not in _PLAIN_TYPES:
        return Refusal.SUBCLASS
    # A user's own: who else has its address (an optimizer in C++, say) is anybody's guess.
    if isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and tensor.is_leaf):
        return Refusal.PARAMETER
    if storage.is_shared():
        return Refusal.SHARED
    if not storage.resizable():
        return Refusal.FOREIGN
    if tensor.is_pinned():
        return Refusal.PINNED
    if torch._C._is_cow_tensor(tensor):  # type: ignore[attr-defined]
        return Refusal.COPY_ON_WRITE
    if viewers(storage) > 1:
        return Refusal.VIEWED
    if _is_traced():
        return Refusal.TRACED
    if _native.is_in_use(tensor.data_ptr(), tensor.nbytes):
        return Refusal.IN_USE
    return None


def _is_traced() -> bool:
    """Whether somebody records what happens to tensors, or stands between them and the kernels."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )
