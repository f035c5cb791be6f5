# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Counts what was moved into shared memory in this process, what was not, and why."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ZeroCopyStatistics", "count_adopted", "count_refused", "statistics"]


@dataclasses.dataclass(frozen=True)
class ZeroCopyStatistics:
    """What happened to the storages of tensors that recurred in collectives of this process.

    Attributes:
        adopted: storages that were moved into shared memory, since the process began. They may be
            gone by now.
        adopted_bytes: bytes of those.
        refused: reason -> storages that stay where they are for it. For the reasons that pass
            ("an operation on it is under way"), how often one was met.
    """

    adopted: int
    adopted_bytes: int
    refused: Mapping[str, int]


_lock = threading.Lock()
_adopted = 0
_adopted_bytes = 0
_refused: collections.Counter[str] = collections.Counter()


def statistics() -> ZeroCopyStatistics:
    """What happened until now, over all groups. Any thread; not blocking."""
    with _lock:
        return ZeroCopyStatistics(_adopted, _adopted_bytes, MappingProxyType(dict(_refused)))


def count_adopted(nbytes: int) -> None:
    """Count a storage of so many bytes that was moved."""
    global _adopted, _adopted_bytes
    with _lock:
        _adopted += 1
        _adopted_bytes += nbytes


def count_refused(reason: str) -> None:
    """Count a storage that was not moved."""
    with _lock:
        _refused[reason] += 1
