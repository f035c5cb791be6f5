# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Modules that run once more than they would must not count it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from torch import nn

__all__ = ["kept_buffers"]


@contextlib.contextmanager
def kept_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What this block changes of the modules' own buffers, or puts in their place, is undone."""
    held = [(module, dict(module._buffers)) for module in modules if module._buffers]
    values = [
        (buffer, buffer.detach().clone())
        for _, own in held
        for buffer in own.values()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, own in held:
            module._buffers.update(own)
        for buffer, value in values:
            buffer.data.copy_(value)  # not seen by autograd, for which it is what it was
