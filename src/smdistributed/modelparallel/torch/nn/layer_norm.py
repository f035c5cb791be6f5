# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.nn.FusedLayerNorm`.

On a GPU with Triton it runs our kernels (`layer_norm_kernels`), else torch's, whose result is the
same up to rounding.
"""

from __future__ import annotations

import functools
import importlib.util
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FusedLayerNorm"]


class FusedLayerNorm(nn.Module):
    """Layer normalisation with the signature of `apex.normalization.FusedLayerNorm`.

    State dictionaries are those of `torch.nn.LayerNorm`.

    Args:
        normalized_shape: the last dimensions of the input, over which mean and variance are taken.
        eps: added to the variance.
        elementwise_affine: False: without `weight` and `bias`.

    Source: modelparallel specification, section 4.10; Apex's documentation.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (int(normalized_shape),)
        self.normalized_shape = torch.Size(normalized_shape)  # type: ignore[arg-type] # no int now
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        if elementwise_affine:
            self.weight = nn.Parameter(torch.empty(self.normalized_shape))
            self.bias = nn.Parameter(torch.empty(self.normalized_shape))
        else:
            self.register_parameter("weight", None)
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Of shape `(*, *normalized_shape)`, any float dtype; the result has both.

        Under `torch.autocast` of CUDA the input is cast first, as in Apex, and not to float32, as
        torch does. Arithmetic is float32 at least. A compiler sees torch's operation.

        Raises:
            RuntimeError: torch's, of a shape that does not end in `normalized_shape`.
        """
        if not input.is_cuda:
            return self._torchs(input)
        if torch.is_autocast_enabled("cuda") and input.dtype is not torch.float64:
            input = input.to(torch.get_autocast_dtype("cuda"))
        with torch.autocast("cuda", enabled=False):
            kernels = None if torch.compiler.is_compiling() else _kernels()
            if kernels is None or not kernels.takes(input, self.normalized_shape):
                return self._torchs(input)
            result: Tensor = kernels.layer_norm(
                input, self.weight, self.bias, self.normalized_shape, self.eps
            )
            return result

    def _torchs(self, input: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if input.is_cuda and weight is not None and bias is not None:
            # torch's kernels want one dtype there.
            weight, bias = weight.to(input.dtype), bias.to(input.dtype)  # type: ignore[assignment]
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    def extra_repr(self) -> str:
        """As `torch.nn.LayerNorm`."""
        return (
            f"{tuple(self.normalized_shape)}, eps={self.eps},"
            f" elementwise_affine={self.elementwise_affine}"
        )


@functools.cache
def _kernels() -> Any:
    """The module with the Triton kernels, or None where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("smdistributed.modelparallel.torch.nn.layer_norm_kernels")
