# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a collective by Horovod's names does to tensors before and after it moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPMismatch
from smdistributed.dataparallel.torch.tensors import literal

__all__ = ["copy_of", "gather_shapes", "require_rows", "require_tensor", "scale"]

_MAX_DIMS = 16


def require_tensor(tensor: Any, caller: str, instead: str = "Call to_dense() first.") -> Tensor:
    """The dense tensor that was given, apart from autograd; it shares the caller's memory."""
    if not isinstance(tensor, Tensor):
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got a {type(tensor).__name__}; expected a torch tensor. Convert it"
            " with torch.as_tensor()."
        )
    if tensor.layout is not torch.strided:
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got a tensor of layout {str(tensor.layout).removeprefix('torch.')};"
            f" expected a dense one. {instead}"
        )
    return tensor.detach()


def require_rows(tensor: Any, caller: str) -> Tensor:
    """As `require_tensor`, with a first dimension to work along."""
    checked = require_tensor(tensor, caller)
    if checked.dim() == 0:
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got a tensor without dimensions, and works along the first one;"
            " expected one or more. Pass tensor.reshape(1)."
        )
    return checked


def copy_of(tensor: Tensor) -> Tensor:
    """A contiguous copy whose memory holds the values."""
    return literal(tensor).clone(memory_format=torch.contiguous_format)


def scale(tensor: Tensor, factor: float) -> Tensor:
    """Multiply in place; integers are multiplied in float64 and cut off towards zero."""
    if factor == 1.0:
        return tensor
    if tensor.dtype is torch.bool:
        raise SMDDPConfigInvalid(
            f"a bool tensor cannot be multiplied by {factor}; expected prescale_factor=1.0 and"
            " postscale_factor=1.0. Leave them out, or convert the tensor."
        )
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.mul_(factor)
    return tensor.copy_(tensor.to(torch.float64).mul_(factor))


def gather_shapes(tensors: Sequence[Tensor], group: Any, caller: str) -> list[list[int]]:
    """The first dimension of each tensor on each rank: `[tensor][rank]`. Blocks.

    Raises:
        SMDDPMismatch: on every rank, if anything but the first dimensions differs.
    """
    for tensor in tensors:
        if tensor.dim() > _MAX_DIMS:
            raise SMDDPConfigInvalid(
                f"hvd.{caller}() got a tensor of {tensor.dim()} dimensions; expected at most"
                f" {_MAX_DIMS}. Flatten some of them."
            )
    width = 1 + _MAX_DIMS
    rows = [[tensor.dim(), *tensor.shape, *[0] * (_MAX_DIMS - tensor.dim())] for tensor in tensors]
    mine = torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(len(rows), width)
    table = torch.empty(group.size(), len(rows), width, dtype=torch.int64, device="cpu")
    group.all_gather_single(table, mine).wait()
    by_rank = table.tolist()
    for index in range(len(rows)):
        shapes = {rank: row[index][1 : 1 + row[index][0]] for rank, row in enumerate(by_rank)}
        if len({("any", *shape[1:]) for shape in shapes.values()}) > 1:
            which = f" as tensor {index}" if len(rows) > 1 else ""
            raise SMDDPMismatch(
                f"hvd.{caller}(): the ranks passed the shapes {shapes}{which}; expected all"
                " dimensions but the first to be equal. Look for a shape that depends on the rank."
            )
    return [[row[index][1] for row in by_rank] for index in range(len(rows))]
