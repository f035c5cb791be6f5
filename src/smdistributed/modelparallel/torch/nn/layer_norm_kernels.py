# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def"
# mypy: disable-error-code="no-untyped-call,untyped-decorator"
"""Layer normalisation in Triton: one pass over memory forward, one backward. Needs Triton.

A row is what a mean is taken of; it is in registers at once, so rows have a length limit.

    forward     a program for each row
    backward    a program for each stripe of rows: the gradient of the input row by row, and of
                weight and bias the sums over the stripe; torch adds these up, in the same order
                every time

Arithmetic is float32. Checked under Triton's interpreter on a CPU (tests/unit); not run on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["layer_norm", "takes"]

_LONGEST_ROW_BYTES = 64 << 10
# By device; a few programs for each processor hide one another's waits.
_STRIPES_PER_PROCESSOR = 4
_STRIPES_ON_CPU = 3


@triton.jit
def _forward(
    x,
    weight,
    bias,
    y,
    means,
    inverses,
    length,
    eps,
    has_affine: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    is_inside = columns < length
    values = tl.load(x + row * length + columns, mask=is_inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / length
    centred = tl.where(is_inside, values - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / length + eps)
    result = centred * inverse
    if has_affine:
        result = result * tl.load(weight + columns, mask=is_inside, other=0.0).to(tl.float32)
        result = result + tl.load(bias + columns, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(y + row * length + columns, result.to(y.dtype.element_ty), mask=is_inside)
    tl.store(means + row, mean)
    tl.store(inverses + row, inverse)


@triton.jit
def _backward(
    x,
    weight,
    dy,
    means,
    inverses,
    dx,
    dweights,
    dbiases,
    num_rows,
    length,
    rows_per_stripe,
    has_affine: tl.constexpr,
    block: tl.constexpr,
):
    stripe = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    is_inside = columns < length
    if has_affine:
        scale = tl.load(weight + columns, mask=is_inside, other=0.0).to(tl.float32)
        dweight = tl.zeros((block,), dtype=tl.float32)
        dbias = tl.zeros((block,), dtype=tl.float32)
    first = stripe * rows_per_stripe
    for row in range(first, min(first + rows_per_stripe, num_rows)):
        place = row * length + columns
        mean = tl.load(means + row)
        inverse = tl.load(inverses + row)
        values = tl.load(x + place, mask=is_inside, other=0.0).to(tl.float32)
        normal = tl.where(is_inside, (values - mean) * inverse, 0.0)
        gradient = tl.load(dy + place, mask=is_inside, other=0.0).to(tl.float32)
        if has_affine:
            dweight += gradient * normal
            dbias += gradient
            gradient = gradient * scale
        along = tl.sum(gradient * normal, 0) / length
        level = tl.sum(gradient, 0) / length
        found = (gradient - level - normal * along) * inverse
        tl.store(dx + place, found.to(dx.dtype.element_ty), mask=is_inside)
    if has_affine:
        tl.store(dweights + stripe * length + columns, dweight, mask=is_inside)
        tl.store(dbiases + stripe * length + columns, dbias, mask=is_inside)


def takes(x: Tensor, normalized_shape: Sequence[int]) -> bool:
    """Whether the kernels can work on it; what they do not take goes to torch."""
    length = _length(normalized_shape)
    return (
        x.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and x.numel() > 0
        and tuple(x.shape[-len(normalized_shape) :]) == tuple(normalized_shape)
        and length * x.itemsize <= _LONGEST_ROW_BYTES
    )


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Sequence[int],
    eps: float,
) -> Tensor:
    """Of an `x` that `takes` says yes to, in its dtype and shape.

    Args:
        weight, bias: both or none, of `normalized_shape`, of any of the dtypes.
    """
    result: Tensor = _LayerNorm.apply(x, weight, bias, _length(normalized_shape), eps)
    return result


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, length: int, eps: float
    ) -> Tensor:
        x = x.contiguous()
        num_rows = x.numel() // length
        y = torch.empty_like(x)
        means = torch.empty(num_rows, dtype=torch.float32, device=x.device)
        inverses = torch.empty_like(means)
        if weight is not None and bias is not None:
            weight, bias = weight.contiguous(), bias.contiguous()
        # A pointer that is not read is any.
        _forward[(num_rows,)](
            *(x, x if weight is None else weight, x if bias is None else bias),
            *(y, means, inverses, length, eps),
            has_affine=weight is not None,
            **_launch_options(length),
        )
        ctx.save_for_backward(x, weight, bias, means, inverses)
        ctx.length = length
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, means, inverses = ctx.saved_tensors
        length, num_rows = ctx.length, means.numel()
        has_affine = weight is not None
        dy = dy.contiguous()
        dx = torch.empty_like(x)
        rows_per_stripe = triton.cdiv(num_rows, _num_stripes(x.device))
        num_stripes = triton.cdiv(num_rows, rows_per_stripe)
        sums = torch.empty(
            (2, num_stripes, length if has_affine else 0), dtype=torch.float32, device=x.device
        )
        _backward[(num_stripes,)](
            *(x, weight if has_affine else x, dy, means, inverses),
            *(dx, sums[0], sums[1], num_rows, length, rows_per_stripe),
            has_affine=has_affine,
            **_launch_options(length),
        )
        if not has_affine:
            return dx, None, None, None, None
        dweight, dbias = sums.sum(1)
        return (
            dx,
            dweight.view_as(weight).to(weight.dtype),
            dbias.view_as(bias).to(bias.dtype),
            None,
            None,
        )


def _launch_options(length: int) -> dict[str, Any]:
    block = triton.next_power_of_2(length)
    return {"block": block, "num_warps": min(max(block // 256, 1), 8)}


@functools.cache
def _num_stripes(device: torch.device) -> int:
    if device.type != "cuda":
        return _STRIPES_ON_CPU
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * _STRIPES_PER_PROCESSOR


def _length(normalized_shape: Sequence[int]) -> int:
    return int(torch.Size(normalized_shape).numel())
