# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which tensors are reduced together: the planner of balanced buckets.

A *bucket* (the original says fusion buffer) is one block of memory that holds gradients one after
the other and is reduced by one collective. Every rank reduces an equal share of it, whatever the
sizes of the tensors. With bucket_cap = 1024 bytes, 2 shares, and tensors of 500, 300, 400, 2000 and
64 bytes:

    bucket 0    | 500 ....|pad| 300 ..|pad| 400 .......|pad|      closed: 512 + 384 + 400 >= 1024
                0             512         896              1536   capacity: a multiple of 2 * 128
                <------- share 0 -------> <---- share 1 ---->
    bucket 1    | 2000 ..............................|pad|        larger than the cap: alone
    bucket 2    | 64 |pad|                                        the tail

The planner is pure and knows no framework: names, sizes and types in, buckets out. All ranks that
give it the same list get the same plan, which is how they agree on it.

Source: dataparallel specification, sections 6.1 and 6.2.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

from smdistributed._common.bucket_size import ALIGNMENT_BYTES, bytes_of_mib, is_bucket_size
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = [
    "BucketPlan",
    "Slot",
    "TensorSpec",
    "parse_bucket_cap",
    "plan_buckets",
]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to plan for.

    Attributes:
        name: for messages.
        num_bytes: size, 0 or more.
        dtype, device: any text; a bucket holds tensors of one dtype and one device.
    """

    name: str
    num_bytes: int
    dtype: str
    device: str = "cpu"


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """Where in its bucket a tensor lies: its index in the planned list, and the byte offset."""

    index: int
    offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class BucketPlan:
    """Tensors that are to be reduced together, and where they lie.

    Attributes:
        slots: in the order of the planned list.
        dtype, device: of all of its tensors.
        used_bytes: end of the last tensor.
        capacity_bytes: size of the buffer, a multiple of 128 for each share; bytes that belong to
            no tensor are zero, and stay so.
    """

    slots: tuple[Slot, ...]
    dtype: str
    device: str
    used_bytes: int
    capacity_bytes: int


def plan_buckets(
    tensors: Sequence[TensorSpec], bucket_cap_bytes: int, num_shares: int
) -> tuple[BucketPlan, ...]:
    """Puts tensors into buckets, in the given order.

    A bucket is closed by the tensor that makes its bytes, alignment included, reach the cap. A
    tensor larger than the cap travels alone; buckets that are being filled wait meanwhile. What is
    left at the end becomes one bucket for each dtype and device. Cost: O(tensors).

    Args:
        tensors: in the order in which they become ready.
        bucket_cap_bytes: a positive multiple of 128.
        num_shares: ranks that reduce a share each (one host), or hosts; at least 1.

    Returns:
        The buckets, in the order in which their last tensor becomes ready.

    Source: specification, section 6.1.
    """
    if not is_bucket_size(bucket_cap_bytes) or num_shares < 1:
        raise SMDDPConfigInvalid(
            f"bucket_cap_bytes={bucket_cap_bytes} with {num_shares} shares cannot be planned;"
            f" expected a positive multiple of {ALIGNMENT_BYTES} bytes and at least one share."
            " Derive the first from bucket_cap_mb by parse_bucket_cap."
        )
    closed: list[BucketPlan] = []
    filling: dict[tuple[str, str], _Filling] = {}
    for index, tensor in enumerate(tensors):
        key = (tensor.dtype, tensor.device)
        if tensor.num_bytes > bucket_cap_bytes:
            alone = _Filling(*key)
            alone.append(index, tensor.num_bytes)
            closed.append(alone.close(num_shares))
            continue
        bucket = filling.setdefault(key, _Filling(*key))
        bucket.append(index, tensor.num_bytes)
        if bucket.used_bytes >= bucket_cap_bytes:
            closed.append(filling.pop(key).close(num_shares))
    closed.extend(bucket.close(num_shares) for bucket in filling.values())
    return tuple(sorted(closed, key=lambda bucket: bucket.slots[-1].index))


def parse_bucket_cap(bucket_cap_mb: Any, default_bytes: int) -> int:
    """Returns the bytes of a `bucket_cap_mb` argument, which is in MiB; None is the default.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is no number (neither bool nor text is one), or its
            bytes are no positive multiple of 128; so every positive whole number passes.

    Source: specification, section 6.2; the text about numbers included.
    """
    if bucket_cap_mb is None:
        return default_bytes
    if isinstance(bucket_cap_mb, bool) or not isinstance(bucket_cap_mb, numbers.Real):
        raise SMDDPConfigInvalid(
            f"bucket_cap_mb={bucket_cap_mb!r} is of type {type(bucket_cap_mb).__name__}; expected a"
            " number, the fusion buffer size in MiB, such as 25. Pass an int or a float."
        )
    num_bytes = bytes_of_mib(bucket_cap_mb)
    if is_bucket_size(num_bytes):
        return num_bytes
    raise SMDDPConfigInvalid(
        f"bucket_cap_mb={bucket_cap_mb!r} gives {num_bytes} bytes; the fusion buffer size must be a"
        f" positive multiple of {ALIGNMENT_BYTES} bytes"
    )


class _Filling:
    """A bucket that still takes tensors."""

    def __init__(self, dtype: str, device: str) -> None:
        self._dtype = dtype
        self._device = device
        self._slots: list[Slot] = []
        self.used_bytes = 0

    def append(self, index: int, num_bytes: int) -> None:
        offset = _round_up(self.used_bytes, ALIGNMENT_BYTES)
        self._slots.append(Slot(index, offset))
        self.used_bytes = offset + num_bytes

    def close(self, num_shares: int) -> BucketPlan:
        return BucketPlan(
            slots=tuple(self._slots),
            dtype=self._dtype,
            device=self._device,
            used_bytes=self.used_bytes,
            capacity_bytes=_round_up(self.used_bytes, num_shares * ALIGNMENT_BYTES),
        )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
