# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Smaller numbers on the wire: `Compression.none` and `Compression.fp16`.

A compressor is a class with two static methods. `compress(tensor)` returns what is sent and a
context; `decompress(tensor, context)` turns what arrives back. Scripts may bring their own.

Scripts for PyTorch call these methods themselves. Those for TensorFlow pass a member as
`compression`, which `resolve_compression` checks.

This module knows no framework. It asks two questions of a tensor through single dispatch, and each
framework's room registers the answers for its own type; NumPy's are here.

Source: dataparallel specification, section 6.4.
"""

from __future__ import annotations

import functools
import typing
from typing import Any, Protocol

import numpy as np

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

__all__ = [
    "Compression",
    "Compressor",
    "FP16Compression",
    "NoneCompression",
    "cast",
    "resolve_compression",
    "wide_float_dtype",
]

_WIDE_FLOATS = frozenset(("float32", "float64", "bfloat16"))


class Compressor(Protocol):
    """What a member of `Compression`, or a class of the user's own, provides.

    The type of a `compression` argument, once `resolve_compression` has checked it.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send and what `decompress` needs to know."""
        ...

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns a received tensor in the form that it had before `compress`."""
        ...


class NoneCompression:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself, and None."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


class FP16Compression:
    """Sends float32, float64 and bfloat16 as float16; other dtypes as they are.

    Values beyond 65504 become infinite. Gradients of loss-scaled training stay below it.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns a float16 copy and the original dtype; the tensor itself and None for others."""
        dtype = wide_float_dtype(tensor)
        return (tensor, None) if dtype is None else (cast(tensor, "float16"), dtype)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor in the dtype that it had before `compress`."""
        return tensor if ctx is None else cast(tensor, ctx)


class Compression:
    """The documented names: `Compression.none` sends as is, `Compression.fp16` halves."""

    none = NoneCompression
    fp16 = FP16Compression


def resolve_compression(compression: Any) -> Compressor:
    """Returns the compressor that a `compression` argument means.

    Args:
        compression: a member of `Compression`, its class, a class derived from one, any class or
            object with `compress` and `decompress`.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is none of these.
    """
    # By hand: isinstance() of a Protocol takes many times as long, and small reductions come here.
    if all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        return typing.cast(Compressor, compression)
    raise SMDDPConfigInvalid(
        f"compression={compression!r} is unknown; expected Compression.none, Compression.fp16, or a"
        " class with the static methods compress(tensor) and decompress(tensor, ctx). Pass one of"
        " these."
    )


@functools.singledispatch
def wide_float_dtype(tensor: Any) -> Any:
    """Returns the dtype of a float32, float64 or bfloat16 tensor, and None for any other dtype.

    A framework registers this for its tensor type, with `cast`.

    Raises:
        SMDDPUnsupported: nobody has registered the type.
    """
    raise SMDDPUnsupported(
        f"Compression.fp16 got a {type(tensor).__module__}.{type(tensor).__qualname__}; expected a"
        " NumPy array, or a tensor of a framework whose smdistributed.dataparallel module has been"
        " imported. Import that module first, or convert the value to an array."
    )


@functools.singledispatch
def cast(tensor: Any, dtype: Any) -> Any:
    """Returns the tensor in another dtype: "float16", or one that `wide_float_dtype` returned.

    Raises:
        SMDDPUnsupported: nobody has registered the type.
    """
    return wide_float_dtype(tensor)  # raises


@wide_float_dtype.register(np.ndarray)
@wide_float_dtype.register(np.generic)
def _(tensor: Any) -> Any:
    return tensor.dtype if tensor.dtype.name in _WIDE_FLOATS else None


@cast.register(np.ndarray)
@cast.register(np.generic)
def _(tensor: Any, dtype: Any) -> Any:
    return tensor.astype(dtype)
