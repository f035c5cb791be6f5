# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the functions that run as ranks share: tagged data, and the arithmetic of one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from machine_speed import scaled

TIMEOUT_S = scaled(30.0)

TRANSPORTS = ("shm", "tcp")
WORLD_SIZES = (1, 2, 3, 5, 8)

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
# bfloat16 is no NumPy type; see test_reductions.py.
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)

# Empty, one, around 512 bytes of float32 (the inline payload ends far below, a cache line of 16-bit
# shares above), a prime, and a prime that needs several rounds through the staging buffers.
SMALL_COUNTS = (0, 1, 127, 128, 129, 4099)
LARGE_COUNT = 300_007


def tagged(rank: int, count: int, dtype: str = "float32") -> Any:
    """`count` elements that each tell their rank and index; exact in every dtype but bool."""
    return (np.arange(count) % 7 + 8 * rank + 1).astype(dtype)


def factors(rank: int, count: int, dtype: str) -> Any:
    """Ones and twos, which can be multiplied over eight ranks without leaving float16."""
    return ((np.arange(count) + rank) % 2 + 1).astype(dtype)


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": np.add,
    "AVG": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def reduced(arrays: Sequence[Any], op: str = "SUM") -> Any:
    """The arrays combined in rank order; 16-bit floats in float32, rounded once.

    An average of integers loses its fraction: Python's whole numbers divide the wrapped sum.
    """
    dtype = arrays[0].dtype
    wide = [array.astype(np.float32) if dtype == np.float16 else array for array in arrays]
    with np.errstate(over="ignore", invalid="ignore"):  # integers wrap, halves overflow: wanted
        total = functools.reduce(_STEPS[op], wide)
        if op == "AVG" and dtype.kind in "iu":
            signs = np.sign(total.astype(object))
            total = signs * (abs(total.astype(object)) // len(arrays))
        elif op == "AVG":
            total = total / total.dtype.type(len(arrays))
        return total.astype(dtype)


def raised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, str, list[str]]:
    """Class name, text and names of all bases of the error that a call must raise."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error), [base.__name__ for base in type(error).__mro__]
    raise AssertionError(f"{function} did not raise")
