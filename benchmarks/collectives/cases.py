# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is measured: collectives, element types, sizes, and how many elements each rank holds.

A case's ``size_bytes`` is the size of the larger buffer of the call, the convention of the usual
collective benchmarks: the one buffer of in-place collectives and of ``send_recv``, the output of
``all_gather`` and ``gather``, the input of ``reduce_scatter``, ``all_to_all`` and ``scatter``.

Bandwidths: the *algorithm bandwidth* is ``size_bytes / time``. The *bus bandwidth* multiplies it by
the share of the buffer that has to cross a link in an optimal algorithm, so that figures of several
rank counts compare with what the memory or the wire can carry.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
)
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
ITEM_SIZES = {"f32": 4, "f16": 2, "bf16": 2}

KIB = 1024
MIB = 1024 * 1024
QUICK_SIZES = (4, 4 * KIB, 64 * KIB, MIB, 25 * MIB)
FULL_SIZES = (
    4,
    64,
    KIB,
    4 * KIB,
    16 * KIB,
    64 * KIB,
    256 * KIB,
    MIB,
    4 * MIB,
    16 * MIB,
    25 * MIB,
    64 * MIB,
    256 * MIB,
)


@dataclass(frozen=True)
class Case:
    """One measured call: a collective on ``ranks`` ranks with a buffer of ``size_bytes`` bytes."""

    collective: str
    dtype: str
    ranks: int
    size_bytes: int

    @property
    def num_elements(self) -> int:
        """Elements of the larger buffer; a multiple of the rank count where ranks share it out."""
        if self.collective == "barrier":
            return 0
        elements = max(1, self.size_bytes // ITEM_SIZES[self.dtype])
        if self.is_partitioned:
            return max(1, elements // self.ranks) * self.ranks
        return elements

    @property
    def is_partitioned(self) -> bool:
        """Whether the larger buffer consists of one chunk per rank."""
        return self.collective in (
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "gather",
            "scatter",
        )

    @property
    def actual_bytes(self) -> int:
        """Size of the larger buffer after rounding to whole chunks, in bytes."""
        return self.num_elements * ITEM_SIZES[self.dtype]

    def source_elements(self, rank: int) -> int:
        """Elements of the buffer that ``rank`` passes in, the only one of in-place collectives."""
        chunk = self.num_elements // self.ranks
        if self.collective in ("all_gather", "gather"):
            return chunk
        if self.collective == "scatter":
            return self.num_elements if rank == 0 else 0
        return self.num_elements

    def output_elements(self, rank: int) -> int:
        """Elements of the separate output buffer of ``rank``; 0 for in-place collectives."""
        chunk = self.num_elements // self.ranks
        if self.collective in ("reduce_scatter", "scatter"):
            return chunk
        if self.collective in ("all_gather", "all_to_all"):
            return self.num_elements
        if self.collective == "gather":
            return self.num_elements if rank == 0 else 0
        return 0

    @property
    def bus_factor(self) -> float:
        """Bus bandwidth / algorithm bandwidth."""
        if self.ranks < 2:
            return 1.0
        if self.collective == "all_reduce":
            return 2.0 * (self.ranks - 1) / self.ranks
        if self.is_partitioned:
            return (self.ranks - 1) / self.ranks
        return 1.0

    @property
    def buffer_bytes(self) -> int:
        """Memory that the buffers of all ranks take together."""
        elements = sum(
            self.source_elements(rank) + self.output_elements(rank) for rank in range(self.ranks)
        )
        return elements * ITEM_SIZES[self.dtype]

    def to_json(self) -> dict[str, object]:
        """Fields that rebuild the case with ``Case(**fields)``."""
        return asdict(self)


class Column(NamedTuple):
    """One library, or one protocol of the floor, in one case: what has turns."""

    library: str
    case: Case


def parse_size(text: str) -> int:
    """``"4"``, ``"64K"``, ``"25M"`` -> bytes, with powers of two. Raises ``ValueError``."""
    digits, unit = text.strip().upper().removesuffix("IB").removesuffix("B"), 1
    if digits.endswith(("K", "M", "G")):
        unit = {"K": KIB, "M": MIB, "G": KIB * MIB}[digits[-1]]
        digits = digits[:-1]
    if not digits.isdigit() or int(digits) * unit < 1:
        raise ValueError(
            f"size {text!r} is not a number of bytes; expected a positive whole number with an "
            "optional K, M or G. Write for example 4, 64K or 25M."
        )
    return int(digits) * unit


def size_name(size_bytes: int) -> str:
    """Bytes in the shortest exact unit: ``4 B``, ``64 KiB``, ``25 MiB``."""
    if size_bytes >= MIB and size_bytes % MIB == 0:
        return f"{size_bytes // MIB} MiB"
    if size_bytes >= KIB and size_bytes % KIB == 0:
        return f"{size_bytes // KIB} KiB"
    return f"{size_bytes} B"
