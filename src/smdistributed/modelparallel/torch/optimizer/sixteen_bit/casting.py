# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A model in 16 bits: its parameters, and what goes in and comes out.

Source: modelparallel specification, sections 4.4 (`module`) and 6.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.torch.containers import flatten
from smdistributed.modelparallel.torch.modules.wrapping import Wrapper
from smdistributed.modelparallel.torch.pipeline.values.deferred import arrived
from smdistributed.modelparallel.torch.pipeline.values.lazy_functions import widened

__all__ = ["SixteenBitModule", "cast_module", "dtype_of"]

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def dtype_of(config: Config) -> torch.dtype | None:
    """In which 16-bit dtype models are trained; None: as they are."""
    if config.fp16:
        return torch.float16
    return torch.bfloat16 if config.bf16 else None


def cast_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts floating-point parameters, their gradients, and buffers; they stay the same objects.

    Modules with running statistics (BatchNorm and its like) are in fp32, also if they were made in
    16 bits: there a mean that moves by a tenth of a difference stands still. torch computes these
    with 16-bit inputs.
    """
    wide = {
        id(tensor)
        for part in module.modules()
        if isinstance(part, _NormBase)
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
    }
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype not in _FLOATS:
            continue
        own = torch.float32 if id(tensor) in wide else dtype
        gradient, tensor.grad = tensor.grad, None
        tensor.data = tensor.data.to(own)
        if gradient is not None:
            tensor.grad = gradient.to(own)


class SixteenBitModule(Wrapper):
    """Around a module in 16 bits: takes and returns what one in fp32 would.

    Args:
        module: cast already.
        dtype: of its parameters.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(module)
        self._dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, with 16-bit floats in fp32."""
        args, kwargs = self.cast_down((args, kwargs))
        return self.cast_up(self.module(*args, **kwargs))

    def cast_down(self, value: Any) -> Any:
        """With floating-point tensors in 16 bits, in containers too.

        Others stay the same objects, and so do parameters: they stand for what they are.
        """
        return _with_leaves(self._leaf_down, value)

    @staticmethod
    def cast_up(value: Any) -> Any:
        """With 16-bit floats in fp32, in containers too. A result that is not here yet stays so."""
        return _with_leaves(_leaf_up, value)

    def _leaf_down(self, leaf: Any) -> Any:
        leaf = arrived(leaf)  # nothing tells of what is not here whether it is floating-point
        if not isinstance(leaf, Tensor) or isinstance(leaf, nn.Parameter):
            return leaf
        return leaf.to(self._dtype) if leaf.dtype in _FLOATS else leaf


def _leaf_up(leaf: Any) -> Any:
    return widened(leaf) if isinstance(leaf, Tensor) else leaf


def _with_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """New containers around what the function returns; the same value if it changes nothing."""
    leaves, structure = flatten(value)
    changed = [function(leaf) for leaf in leaves]
    if all(one is other for one, other in zip(leaves, changed, strict=True)):
        return value
    return structure.unflatten(changed)
