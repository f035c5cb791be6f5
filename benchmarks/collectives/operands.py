# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Input data and expected results, as NumPy arrays, independent of every measured library.

Element ``index`` of ``rank`` holds ``(index % 7 + 1) * (rank + 1)``. Any partial sum over up to 8
ranks is a whole number of at most 7 * 36 = 252, which float32, float16 and bfloat16 all hold
exactly: results are compared bit for bit, whatever the order of the additions.

NumPy has no bfloat16; such buffers travel as ``uint16`` bit patterns.

Buffers are seen as NumPy arrays, or through what an adapter puts before its own memory: an
``ArrayLike`` is read and written in slices.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from cases import Case

Array = np.ndarray[Any, np.dtype[Any]]


class ArrayLike(Protocol):
    """What filling and checking needs of a buffer; a slice may be a view or a copy."""

    @property
    def size(self) -> int:
        """Number of elements."""

    def __getitem__(self, index: slice, /) -> Array: ...

    def __setitem__(self, index: slice, value: Any, /) -> None: ...


NUMPY_DTYPES: dict[str, type[np.generic]] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
}
_PIECE = 7 * 149_796  # handled piecewise, about 1 Mi elements, to spare memory


def _pattern(first: int, count: int, factor: int, dtype: str) -> Array:
    """Elements ``first .. first + count - 1`` of the pattern, times ``factor``."""
    base = (np.arange(first % 7, first % 7 + 7) % 7 + 1).astype(np.float32) * factor
    bits = base.view(np.uint32) >> 16 if dtype == "bf16" else base
    return np.tile(bits.astype(NUMPY_DTYPES[dtype]), count // 7 + 1)[:count]


def fill_inputs(case: Case, rank: int, source: ArrayLike, output: ArrayLike) -> None:
    """Write the input pattern of ``rank`` into ``source`` and zeros into ``output``, in place."""
    output[:] = 0
    if case.collective == "broadcast" and rank != 0:
        source[:] = 0
    else:
        for begin in range(0, source.size, _PIECE):
            count = min(_PIECE, source.size - begin)
            source[begin : begin + count] = _pattern(begin, count, rank + 1, case.dtype)


def _find_difference(name: str, got: ArrayLike, first: int, factor: int, dtype: str) -> str | None:
    for begin in range(0, got.size, _PIECE):
        piece = got[begin : begin + _PIECE]
        expected = _pattern(first + begin, piece.size, factor, dtype)
        if not np.array_equal(piece, expected):
            where = int(np.flatnonzero(piece != expected)[0])
            return (
                f"{name}[{begin + where}] is {piece[where]}, expected {expected[where]}; "
                "the library's result is wrong, so no time is reported"
            )
    return None


def find_error(case: Case, rank: int, source: ArrayLike, output: ArrayLike) -> str | None:
    """What is wrong in the buffers of ``rank`` after one call; ``None`` if all is right."""
    chunk = case.num_elements // case.ranks
    everyone = case.ranks * (case.ranks + 1) // 2
    if case.collective == "all_reduce":
        return _find_difference("result", source, 0, everyone, case.dtype)
    if case.collective == "reduce":
        return _find_difference("result", source, 0, everyone, case.dtype) if rank == 0 else None
    if case.collective in ("broadcast", "send_recv"):
        if case.collective == "send_recv" and rank > 1:
            return None
        return _find_difference("result", source, 0, 1, case.dtype)
    if case.collective == "reduce_scatter":
        return _find_difference("output", output, rank * chunk, everyone, case.dtype)
    if case.collective == "scatter":
        return _find_difference("output", output, rank * chunk, 1, case.dtype)
    if case.collective == "barrier" or (case.collective == "gather" and rank != 0):
        return None
    for peer in range(case.ranks):
        first = rank * chunk if case.collective == "all_to_all" else 0
        part = output[peer * chunk : (peer + 1) * chunk]
        error = _find_difference(f"chunk {peer} of output", part, first, peer + 1, case.dtype)
        if error is not None:
            return error
    return None


def fill_zeros(source: ArrayLike, output: ArrayLike) -> None:
    """Zeros for the timed calls: repeated in-place sums of anything else would reach infinity."""
    source[:] = 0
    output[:] = 0
