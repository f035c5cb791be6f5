# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""all_reduce of sparse (COO) tensors: every rank gathers all entries and adds them up.

Ranks hold different numbers of entries, so their sizes are gathered first (and checked: a rank with
another shape would make sums of unrelated things). Then indices and values travel once each, and
every rank adds them in rank order, which gives the same bits everywhere. Bytes received per rank:
the entries of all ranks, as with any gather.

The call is complete when it returns; there is nothing to start before the sizes are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from smdistributed.dataparallel.exceptions import SMDDPMismatch, SMDDPUnsupported
from smdistributed.dataparallel.torch.calls import Calls
from smdistributed.dataparallel.torch.tensors import OP_CODES, SUM

__all__ = ["all_reduce"]

_OPERATION = "all_reduce of a sparse tensor"
_MAX_DIMS = 8


def all_reduce(tensor: Tensor, op: ReduceOp, calls: Calls, engine: Any, timeout_s: float) -> None:
    """Replace `tensor` by the sum over all ranks, coalesced.

    Args:
        tensor: sparse COO on the CPU; its shape, dtype and sparse dimensions equal on all ranks.
        op: SUM; the engine's other operations have no meaning for absent entries.
        calls, engine: check and carry out the gathers.
        timeout_s: for each of the three gathers; 0 is the group's default.

    Raises:
        SMDDPUnsupported: another operation, or more than 8 dimensions.
        SMDDPMismatch: the ranks' shapes differ.
    """
    if OP_CODES.get(hash(op)) != SUM or tensor.dim() > _MAX_DIMS:
        raise SMDDPUnsupported(
            f"{_OPERATION} with {tensor.dim()} dimensions was asked for {op}; expected SUM and at"
            f" most {_MAX_DIMS} dimensions. Call to_dense() first."
        )
    mine = tensor.coalesce()
    sizes = _gather_sizes(mine, calls, engine, timeout_s)
    own_indices, own_values = mine.indices(), mine.values().detach()
    indices = [own_indices.new_empty((mine.sparse_dim(), n)) for n in sizes]
    values = [own_values.new_empty((n, *own_values.shape[1:])) for n in sizes]
    calls.all_gather(indices, own_indices, _OPERATION).run(engine, timeout_s)
    calls.all_gather(values, own_values, _OPERATION).run(engine, timeout_s)
    with torch.no_grad():
        total = torch.sparse_coo_tensor(
            torch.cat(indices, dim=1), torch.cat(values), tensor.shape
        ).coalesce()
        tensor.copy_(total)


def _gather_sizes(mine: Tensor, calls: Calls, engine: Any, timeout_s: float) -> Sequence[int]:
    """The number of entries of each rank; raises on every rank if the shapes differ."""
    width = 3 + _MAX_DIMS
    about = [mine._nnz(), mine.sparse_dim(), mine.dim(), *mine.shape]
    row = mine.indices().new_tensor(about + [0] * (width - len(about)))
    rows = row.new_empty((calls.size, width))
    calls.all_gather_single(rows, row, _OPERATION).run(engine, timeout_s)
    table = rows.tolist()
    if any(other[1:] != table[0][1:] for other in table):
        shapes = {rank: tuple(other[3 : 3 + other[2]]) for rank, other in enumerate(table)}
        raise SMDDPMismatch(
            f"{_OPERATION}: the ranks passed the shapes {shapes}; all must pass one shape and one"
            " number of sparse dimensions. Look for a shape that depends on the rank's data."
        )
    return [int(other[0]) for other in table]
