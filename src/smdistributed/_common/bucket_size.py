# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How large a bucket may be: the rule that `bucket_cap_mb` and `SMDDP_BUCKET_CAP_MB` share.

Source: dataparallel specification, section 6.2.
"""

import math
import numbers
from typing import Any, TypeGuard

__all__ = ["ALIGNMENT_BYTES", "bytes_of_mib", "is_bucket_size"]

ALIGNMENT_BYTES = 128
"""Offsets of tensors, shares of ranks and sizes of buckets are multiples of this."""

_MIB = 1024 * 1024


def bytes_of_mib(value: Any) -> Any:
    """Returns the bytes of a number of MiB, as an int if they are whole.

    nan for what is no number: text, for example, and bool. Not every result is a size that a
    bucket may have; see `is_bucket_size`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    num_bytes: Any = value * _MIB
    return int(num_bytes) if math.isfinite(num_bytes) and num_bytes == int(num_bytes) else num_bytes


def is_bucket_size(num_bytes: Any) -> TypeGuard[int]:
    """Whether a bucket may be filled up to this: a positive int, a multiple of 128."""
    return isinstance(num_bytes, int) and num_bytes > 0 and num_bytes % ALIGNMENT_BYTES == 0
