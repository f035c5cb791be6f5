# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Counts the tensors of this process in shared memory, and those that could not go there."""

from __future__ import annotations

import collections
import dataclasses
import enum
import threading
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["Origin", "ZeroCopyStatistics", "count_refused", "count_shared", "statistics"]


class Origin(enum.Enum):
    """How a tensor came into shared memory."""

    BUCKET = "a gradient bucket of torch's DistributedDataParallel"
    ALLOCATED = "empty_shared(), allocate_shared(), or allocated for FSDP2 or the legacy wrapper"
    ADOPTED = "moved, since it recurred (SMDDP_ZERO_COPY=recurring)"


@dataclasses.dataclass(frozen=True)
class ZeroCopyStatistics:
    """Tensors in memory that the ranks of a host share, since the process began.

    They may be gone by now.

    Attributes:
        buckets, bucket_bytes: gradient buckets of torch's `DistributedDataParallel`. torch replaces
            those of the first step, so most are counted twice.
        allocated, allocated_bytes: tensors of `empty_shared()` and of the group's
            `allocate_shared()`, buffers of FSDP2, buckets of the legacy `DistributedDataParallel`.
        adopted, adopted_bytes: tensors that moved there since they recurred in collectives; none
            without `SMDDP_ZERO_COPY=recurring`.
        refused: reason -> storages that stayed in ordinary memory for it. For the reasons that pass
            ("an operation on it is under way"), how often one was met.
    """

    buckets: int
    bucket_bytes: int
    allocated: int
    allocated_bytes: int
    adopted: int
    adopted_bytes: int
    refused: Mapping[str, int]

    @property
    def shared(self) -> int:
        """Tensors in shared memory, whatever their origin."""
        return self.buckets + self.allocated + self.adopted


_lock = threading.Lock()
_shared: collections.Counter[Origin] = collections.Counter()
_shared_bytes: collections.Counter[Origin] = collections.Counter()
_refused: collections.Counter[str] = collections.Counter()


def statistics() -> ZeroCopyStatistics:
    """What happened until now, over all groups. Any thread; not blocking."""
    with _lock:
        return ZeroCopyStatistics(
            _shared[Origin.BUCKET],
            _shared_bytes[Origin.BUCKET],
            _shared[Origin.ALLOCATED],
            _shared_bytes[Origin.ALLOCATED],
            _shared[Origin.ADOPTED],
            _shared_bytes[Origin.ADOPTED],
            MappingProxyType(dict(_refused)),
        )


def count_shared(origin: Origin, nbytes: int) -> None:
    """Count a tensor of so many bytes in shared memory."""
    with _lock:
        _shared[origin] += 1
        _shared_bytes[origin] += nbytes


def count_refused(reason: str) -> None:
    """Count a storage that is not in shared memory, though it could use it."""
    with _lock:
        _refused[reason] += 1
