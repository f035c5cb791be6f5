# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.nn.FusedLayerNorm`, on torch's own kernels."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

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
        torch does. Arithmetic is float32 at least.

        Raises:
            RuntimeError: torch's, of a shape that does not end in `normalized_shape`.
        """
        if not input.is_cuda:
            return self._torchs(input)
        if torch.is_autocast_enabled("cuda") and input.dtype is not torch.float64:
            input = input.to(torch.get_autocast_dtype("cuda"))
        with torch.autocast("cuda", enabled=False):
            return self._torchs(input)

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
