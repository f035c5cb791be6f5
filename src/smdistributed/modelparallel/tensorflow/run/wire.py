# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between the drivers of a pipeline, as bytes.

A header says what it is: kind, number of the doing, program, edge, microbatch, and for a tensor its
type and shape. The body is a tensor, sent from where it lies and used where it has arrived; or a
pickled object. Pickles come only from ranks that have proved the job's token (docs/security.md).

Source: our choice.
"""

from __future__ import annotations

import enum
import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from smdistributed.modelparallel.messages.channel import Channel, Incoming

__all__ = [
    "Agreement",
    "Header",
    "Kind",
    "content_of",
    "header_of",
    "post_object",
    "room_header",
    "tensor_header",
    "tensor_in",
    "tensor_of",
]


class Kind(enum.IntEnum):
    """Of a message."""

    TENSOR = 0  # along an edge
    DONE = 1  # to rank 0: the sender has run its list; the mark of its batch
    END = 2  # from rank 0: all have
    ABORT = 3  # what is under way has failed: why, a text
    AGREE = 4  # what the sender brings to an agreement: an `Agreement`
    PROBE = 5  # the sender has waited too long: who is there?
    PRESENT = 6  # the answer
    ROOM = 7  # the sender has ended a microbatch


# Kind, code of the dtype, dimensions, padding, program, number, edge, microbatch; then the sizes.
_FIXED = struct.Struct("<BBBxIQII")
_SIZES = tuple(struct.Struct(f"<{rank}q") for rank in range(256))

# Those that DLPack carries as they are, the same bits under another name, and those that go by
# TensorFlow's own encoding.
_PLAIN = (
    tf.float32, tf.float64, tf.float16, tf.complex64, tf.complex128,
    tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64, tf.bool,
)  # fmt: skip
_AS_BITS = (tf.bfloat16,)
_NUMPY = tuple(dtype.as_numpy_dtype for dtype in _PLAIN) + tuple(
    {2: np.uint16}[dtype.size] for dtype in _AS_BITS
)
_CODES = {dtype.as_datatype_enum: code for code, dtype in enumerate((*_PLAIN, *_AS_BITS))}
_FIRST_AS_BITS = len(_PLAIN)
_ENCODED = 255


class Header(NamedTuple):
    """What a message is."""

    kind: int
    code: int
    dimensions: int
    program: int
    number: int
    edge: int
    microbatch: int


class Agreement(NamedTuple):
    """What a rank brings to an agreement.

    Attributes:
        does: what the rank does, in words; the same on all ranks.
        value: any that pickles.
    """

    does: str
    value: Any


def header_of(header: bytes) -> Header:
    """What has come, from `Incoming.header`."""
    return Header._make(_FIXED.unpack_from(header))


def tensor_header(
    tensor: Any, program: int, number: int, edge: int, microbatch: int
) -> tuple[bytes, Any]:
    """The header of a tensor that travels, and the array whose memory is its body.

    Args:
        tensor: eager, dense; a resource or a variant cannot go.

    Raises:
        TypeError: it cannot.
    """
    code = _CODES.get(tensor.dtype.as_datatype_enum, _ENCODED)
    # As `numpy()`, which makes a copy; where the tensor is on a device, this is one too. Not
    # `ascontiguousarray`, which gives a scalar an axis.
    array = _encoded(tensor) if code == _ENCODED else np.asarray(tensor._numpy(), order="C")
    sizes = array.shape
    fixed = _FIXED.pack(Kind.TENSOR, code, len(sizes), program, number, edge, microbatch)
    return fixed + _SIZES[len(sizes)].pack(*sizes), array


def room_header(program: int, number: int, microbatch: int) -> bytes:
    """Says that the sender has ended a microbatch."""
    return _FIXED.pack(Kind.ROOM, 0, 0, program, number, 0, microbatch)


def _encoded(tensor: Any) -> Any:
    if tensor.dtype in (tf.resource, tf.variant):
        raise TypeError(
            f"a {tensor.dtype.name} cannot go to another rank; expected a tensor of numbers, bools"
            " or strings. Place what makes it and what uses it in one partition."
        )
    # Not by the operation for it, which knows fewer types.
    described = tf.make_tensor_proto(tensor.numpy(), tensor.dtype, tensor.shape)
    return np.frombuffer(described.SerializeToString(), np.uint8)


def tensor_of(message: Incoming, header: bytes) -> Any:
    """The tensor in a message; its memory is the message's, which it keeps."""
    code, dimensions = header[1], header[2]
    if code == _ENCODED:
        return _decoded(message)
    return _lying_in(message, code, _SIZES[dimensions].unpack_from(header, _FIXED.size))


def tensor_in(memory: Any, dtype: Any, shape: Sequence[int]) -> Any | None:
    """The tensor whose bytes lie in a writable buffer, which it keeps; None if that cannot be.

    Args:
        memory: of as many bytes; where it does not begin at a multiple of 64, TensorFlow copies.
    """
    code = _CODES.get(dtype.as_datatype_enum)
    return None if code is None else _lying_in(memory, code, shape)


def _lying_in(memory: Any, code: int, shape: Sequence[int]) -> Any:
    dtype = _NUMPY[code]
    if memory.nbytes == 0:
        tensor = tf.zeros(shape, dtype)
    else:
        array = np.frombuffer(memory, dtype).reshape(shape)
        tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    if code >= _FIRST_AS_BITS:
        tensor = tf.bitcast(tensor, _AS_BITS[code - _FIRST_AS_BITS])
    return tensor


def _decoded(message: Incoming) -> Any:
    encoded = bytes(cast("Any", message))
    described = TensorProto.FromString(encoded)
    return tf.io.parse_tensor(encoded, tf.dtypes.as_dtype(described.dtype))


def post_object(
    channel: Channel, dest: int, kind: Kind, number: int, program: int, content: Any = None
) -> None:
    """Sends what is no tensor; waits for nobody."""
    header = _FIXED.pack(kind, 0, 0, program, number, 0, 0)
    channel.post_message(dest, header + pickle.dumps(content), [])


def content_of(header: bytes) -> Any:
    """What `post_object` has sent."""
    return pickle.loads(header[_FIXED.size :])
