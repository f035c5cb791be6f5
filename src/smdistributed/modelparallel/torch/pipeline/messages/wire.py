# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a pipeline, as bytes; messages.py lists them.

A message is a row of integers, tensors, and now and then a pickled object:

    header    kind, step, number of integers, number of tensors; the integers; for each tensor its
              type and sizes; the pickle. All integers are 64 bits, little endian.
    segments  the bytes of the tensors, each from a multiple of 64 on.

Tensors are made in place, on the memory the message arrived in. Pickles come only from ranks that
have proved the job's token (docs/security.md).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from smdistributed.modelparallel.messages.channel import Incoming

__all__ = ["Letter", "pack", "unpack"]


class Letter(NamedTuple):
    """A message, unpacked."""

    kind: int
    step: int
    source: int
    ints: tuple[int, ...]
    tensors: list[Tensor | None]
    pickled: bytes


_ALIGNMENT = 64
_FIXED = struct.Struct("<4q")
_NONE = -1
_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_REQUIRES_GRAD = 1 << 8
_CHANNELS_LAST = 1 << 9
_STAYS_ON_CPU = 1 << 10
_NDIM_SHIFT = 16


def _plain(tensor: Tensor, stays_on_cpu: int) -> tuple[Tensor, int]:
    """The tensor as bytes in CPU memory carry it, and flags; raises for kinds that cannot be.

    Args:
        stays_on_cpu: the flag of a tensor that is in CPU memory.
    """
    code = _CODES.get(tensor.dtype)
    is_wrapper = type(tensor) is not Tensor and hasattr(type(tensor), "__tensor_flatten__")
    is_odd = tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta
    if code is None or is_odd or is_wrapper:
        raise TypeError(_refusal(tensor))
    flags = code | tensor.dim() << _NDIM_SHIFT
    if tensor.requires_grad:
        flags |= _REQUIRES_GRAD
    if tensor.is_cpu:
        flags |= stays_on_cpu
    else:
        tensor = tensor.detach().cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            flags |= _CHANNELS_LAST
        else:
            tensor = tensor.contiguous()
    return tensor, flags


def _refusal(tensor: Tensor) -> str:
    kind = f"{'nested ' if tensor.is_nested else ''}{type(tensor).__name__}"
    advice = "Convert it before it is passed to, or returned from, a module that lives elsewhere."
    if tensor.is_nested:
        advice = (
            "nn.TransformerEncoder makes one of a padding mask in evaluations: make it with"
            " enable_nested_tensor=False. Convert others, with torch.nested.to_padded_tensor(),"
            " before they are passed to, or returned from, a module that lives elsewhere."
        )
    elif tensor.is_meta:
        advice = "It is on the device 'meta' and has no values: make it on the device of the model."
    elif tensor.layout is not torch.strided:
        advice = f"Call its to_dense(). {advice}"
    return (
        f"a {kind} ({tensor.layout}, {tensor.dtype}) cannot go to another rank; expected a dense"
        f" tensor of an ordinary type. {advice}"
    )


def pack(
    kind: int,
    step: int,
    ints: Sequence[int],
    tensors: Sequence[Tensor | None] = (),
    pickled: bytes = b"",
    device: torch.device | None = None,
) -> tuple[bytes, list[tuple[int, int]], list[Tensor]]:
    """The header, the segments, and the tensors that own their memory: keep them until posted.

    Args:
        device: of the sender, unless that is the CPU. What is in CPU memory all the same is there
            on purpose, such as the sizes of a `PackedSequence`, and stays there at the receiver.

    Raises:
        TypeError: for a tensor that is not dense.
    """
    row = [kind, step, len(ints), len(tensors), *ints]
    segments = []
    kept = []
    stays_on_cpu = 0 if device is None else _STAYS_ON_CPU
    for tensor in tensors:
        if tensor is None:
            row.append(_NONE)
            continue
        plain, flags = _plain(tensor, stays_on_cpu)
        row.append(flags)
        row.extend(plain.shape)
        segments.append((plain.data_ptr(), plain.nbytes))
        kept.append(plain)
    return struct.pack(f"<{len(row)}q", *row) + pickled, segments, kept


def unpack(message: Incoming, device: torch.device | None = None) -> Letter:
    """The letter in a message; its tensors are leaves, on `device` if one is given: see `pack`.

    `requires_grad` of each is as it was at the sender.
    """
    header = message.header
    kind, step, num_ints, num_tensors = _FIXED.unpack_from(header)
    row = struct.unpack_from(f"<{len(header) // 8}q", header)
    ints = row[4 : 4 + num_ints]
    position = 4 + num_ints
    offset = 0
    tensors: list[Tensor | None] = []
    for _ in range(num_tensors):
        flags = row[position]
        position += 1
        if flags == _NONE:
            tensors.append(None)
            continue
        num_dims = flags >> _NDIM_SHIFT
        shape = row[position : position + num_dims]
        position += num_dims
        dtype = _DTYPES[flags & 0xFF]
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
        else:
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
            tensor = torch.frombuffer(message, dtype=dtype, count=count, offset=offset)
            offset += count * dtype.itemsize
            # In place: what autograd gives to users to change must be no view.
            if flags & _CHANNELS_LAST:
                n, c, h, w = shape
                tensor.as_strided_((n, c, h, w), (c * h * w, 1, w * c, c))
            else:
                tensor.resize_(shape)
        if device is not None and not flags & _STAYS_ON_CPU:
            tensor = tensor.to(device)
        elif (
            4 * tensor.nbytes < message.nbytes
        ):  # or who keeps a loss would keep all of the message
            tensor = tensor.clone()
        if flags & _REQUIRES_GRAD:
            tensor.requires_grad_()
        tensors.append(tensor)
    return Letter(kind, step, message.source, ints, tensors, header[8 * position :])
