# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Notes two things about storages that torch does itself not remember.

- **Exports through DLPack.** The other side (NumPy, JAX) has the address. Unlike `.numpy()`, an
  export leaves no trace in the storage. One that comes *after* a storage was moved is harmless: a
  storage moves once.
- **Resizes.** FSDP and others empty a storage (`resize_(0)`) and fill it again, to have its memory
  for a part of the step only. torch cannot do that to a storage that was moved, so those stay.

Exports made before the backend was imported are not known, nor those through the C interface
that torch offers to compiled extensions. Whoever does that and keeps the address needs
`SMDDP_ZERO_COPY=0`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smdistributed.dataparallel.torch.adoption.marks import IN_PARTS, SEEN, mark, mark_of
from smdistributed.dataparallel.torch.adoption.rules import Refusal

__all__ = ["install"]


def install() -> None:
    """Put the wrappers in place; once per process."""
    torch.Tensor.__dlpack__ = _noting_export(torch.Tensor.__dlpack__)  # type: ignore[method-assign]
    for module in (torch, torch.utils.dlpack):
        namespace: Any = module
        namespace.to_dlpack = _noting_export(namespace.to_dlpack)
    storage_class: Any = torch.UntypedStorage
    storage_class.resize_ = _noting_resize(storage_class.resize_)


def _noting_export(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def export(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        capsule = original(tensor, *args, **kwargs)
        if tensor.is_cpu and kwargs.get("copy") is not True:
            _refuse(tensor.untyped_storage(), Refusal.EXPORTED)
        return capsule

    return export


def _noting_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resize(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        result = original(storage, *args, **kwargs)
        _refuse(storage, Refusal.RESIZED)
        return result

    return resize


def _refuse(storage: torch.UntypedStorage, refusal: Refusal) -> None:
    """Let this storage stay where it is, and say why if it ever comes into a collective."""
    if mark_of(storage) in (None, IN_PARTS, SEEN):
        mark(storage, refusal)
