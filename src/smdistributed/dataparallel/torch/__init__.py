# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data parallel training with PyTorch.

`import smdistributed.dataparallel.torch.torch_smddp` registers the backend `smddp`. Three functions
here are the ones that the original's documentation mentions in passing: rank, world size and local
rank of this process, after `torch.distributed.init_process_group`. `empty_shared`, `get_local_size`
and `zero_copy_statistics` are ours.

Source: dataparallel specification, sections 1 and 5.1; docs/zero_copy.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from smdistributed.dataparallel.torch.adoption.statistics import ZeroCopyStatistics

__all__ = [
    "empty_shared",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "zero_copy_statistics",
]


def get_rank() -> int:
    """Rank of this process among all of the job; raises `SMDDPNotInitialized` before init."""
    _require_initialized("get_rank")
    import torch.distributed as dist

    return dist.get_rank()


def get_world_size() -> int:
    """Number of processes of the job; raises `SMDDPNotInitialized` before init."""
    _require_initialized("get_world_size")
    import torch.distributed as dist

    return dist.get_world_size()


def get_local_rank() -> int:
    """Rank of this process among those on its host; raises `SMDDPNotInitialized` before init."""
    _require_initialized("get_local_rank")
    from smdistributed.dataparallel.torch.default_group import local_rank

    return local_rank()


def get_local_size() -> int:
    """Number of processes on this host; raises `SMDDPNotInitialized` before init."""
    _require_initialized("get_local_size")
    from smdistributed.dataparallel.torch.default_group import local_size

    return local_size()


def empty_shared(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None
) -> torch.Tensor:
    """An uninitialized tensor in memory that all ranks of the host reach.

    Collectives need not copy it. `memory.empty_shared` is the same and says what holds for it.

    Args:
        size: as for `torch.empty`.
        dtype: default: torch's default dtype.
        group: the process group whose collectives it is for; default: the default group.
    """
    from smdistributed.dataparallel.torch import memory

    return memory.empty_shared(*size, dtype=dtype, group=group)


def zero_copy_statistics() -> ZeroCopyStatistics:
    """Tensors of this process in memory that the ranks share, and those that are not, and why.

    Any time, any thread; without a group there are none. Source: docs/zero_copy.md.
    """
    from smdistributed.dataparallel.torch.adoption.statistics import statistics

    return statistics()


def _require_initialized(name: str) -> None:
    # Here, since it imports torch, which must not be needed to import a package of ours.
    from smdistributed.dataparallel.torch.default_group import require_initialized

    require_initialized(f"{name}()")
