# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A forward pass without gradients, also of a model that takes a gradient in its forward.

A model of forces derives its energy by positions, a critic may be penalised for its slope. Where
gradients are off, `torch.autograd.grad` finds no history and raises. The engine below it returns
zeros then: right in shape, dtype and device, which is all that a look at a model needs. Where the
model turns gradients on by itself (`torch.enable_grad()`), they are torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["without_gradients"]


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """As `torch.no_grad()`; gradients that are taken in the block are zeros."""
    # Below torch.autograd.grad and backward, by whatever name they are known; no documented name.
    engine = getattr(torch.autograd, "_engine_run_backward", None)
    if engine is None:
        with torch.no_grad():
            yield
        return

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if any(getattr(output, "requires_grad", True) for output in outputs):
            return engine(outputs, *args, **kwargs)
        inputs = args[3]  # of grad(); backward() looks at no result
        return tuple(torch.zeros_like(each) for each in inputs)

    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined,assignment]
    try:
        with torch.no_grad():
            yield
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]
