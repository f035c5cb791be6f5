# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a tensor must be before its address goes to the engine, and torch's codes in the engine's.

The engine sees an address, a number of elements and a type. Everything that makes these three a
true description of a tensor is checked here: device, layout, contiguity, sizes.

Contiguity follows what callers of Gloo and NCCL rely on (dataparallel specification, section 4.3):

- collectives that work in place take any *dense* tensor (a permuted one, channels_last) and treat
  it in storage order, as those do. Every rank must then use the same order of dimensions; where
  those would silently mix up elements, the engine compares the orders (`storage_order`);
- collectives with lists of tensors, and the gather and scatter forms, pass a tensor with holes
  through a contiguous copy;
- where Gloo would silently give a wrong result (a view with holes reduced in place), we refuse.

The memory of a lazily negated or conjugated view (`tensor.conj().imag`) does not hold its values. A
call that reads such a view reads a copy with its values; one that fills a list or a gathered tensor
copies the result into it; one that would write into it in place refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from smdistributed.collectives import _native
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

__all__ = [
    "DTYPE_CODES",
    "LOWEST_ADDRESS",
    "OP_CODES",
    "STRIDED",
    "SUM",
    "address",
    "check_moves",
    "check_reducible",
    "in_place",
    "is_literal",
    "is_plain",
    "literal",
    "movable",
    "only_tensor",
    "reduction",
    "staged_input",
    "staged_outputs",
    "storage_order",
]

DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code
    for code, name in enumerate(_native.dtype_names())
    if code != _native.OPAQUE8
}
"""Types that the engine knows. All others move as bytes and cannot be reduced."""

# A torch ReduceOp hashes to the number of its type, the cheapest way to get at it from Python. The
# engine's operations have torch's names.
OP_CODES: dict[int, int] = {
    hash(getattr(ReduceOp, op.name)): int(op)
    for op in _native.ReduceOp
    if hasattr(ReduceOp, op.name)
}
SUM: int = _native.SUM

STRIDED = torch.strided  # looked up once, for the hot path
LOWEST_ADDRESS = 1 << 40
"""Below, an address may be an offset alone: that of a view of memory that was freed."""

_BITWISE = frozenset((_native.BAND, _native.BOR, _native.BXOR))
_ORDERING = frozenset((_native.MIN, _native.MAX, _native.PRODUCT))


def check_reducible(dtype: torch.dtype, op: ReduceOp, operation: str) -> int:
    """The engine's code for a reduce operation on this dtype.

    An average of integers is the integer sum divided towards zero. torch's Gloo has no average at
    all, but NCCL does this, and so does Lightning by itself over Gloo: its `self.log` with
    `sync_dist=True` averages whole numbers.

    Raises:
        SMDDPUnsupported: nothing on the CPU can perform it. The text starts with the one that
            scripts look for (dataparallel specification, section 4.3).
    """
    code = OP_CODES.get(hash(op))
    if code is not None and dtype in DTYPE_CODES:
        if code == SUM:
            return code
        numeric = dtype.is_floating_point or dtype.is_complex
        if code in _BITWISE and not numeric:
            return code
        if code == _native.AVG and dtype != torch.bool:
            return code
        if code == _native.PREMUL_SUM and numeric:
            return code
        if code in _ORDERING and not dtype.is_complex:
            return code
    raise SMDDPUnsupported(
        f"SMDDP does not support: ReduceOp. {operation} was called with {_op_name(op)} on"
        f" {_short(dtype)}; expected SUM, AVG, PRODUCT, MIN, MAX or PREMUL_SUM on floating point,"
        " SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR on integers, the same without AVG on bool,"
        " SUM, AVG or PREMUL_SUM on complex tensors. Convert the tensor, or use another operation."
    )


def reduction(op: ReduceOp, dtype: torch.dtype, operation: str) -> tuple[int, float]:
    """(engine code, factor) of a reduce operation; the factor is 1 except for `PREMUL_SUM`.

    Raises: as `check_reducible`.
    """
    code = check_reducible(dtype, op, operation)
    if code != _native.PREMUL_SUM:
        return code, 1.0
    factor = _state(op)[1]  # a number, or a tensor of one element
    return code, float(factor.item() if isinstance(factor, Tensor) else factor)


def check_moves(tensor: Tensor, operation: str, device_type: str = "cpu") -> None:
    """Raise unless this is a dense tensor in memory of this device; says what it is instead."""
    if device_type == "cpu" and tensor.is_cpu and tensor.layout is STRIDED:
        return  # without making a device object
    if tensor.layout is not torch.strided:
        raise SMDDPUnsupported(
            f"{operation} got a tensor of layout {str(tensor.layout)[6:]}; only all_reduce takes"
            " sparse (COO) tensors, everything else needs a dense one. Call to_dense() first."
        )
    if tensor.is_meta:
        raise SMDDPConfigInvalid(
            f"{operation} got a meta tensor of shape {tuple(tensor.shape)}, which has no memory;"
            " expected a tensor with data. Materialise it first, for example with to_empty()."
        )
    if tensor.device.type != device_type:
        raise SMDDPUnsupported(
            f"{operation} got a tensor on {tensor.device}; expected {device_type} in this call of"
            " this group. Move it there, or name a backend for its device when the group is made,"
            f" such as init_process_group('cpu:smddp,{tensor.device.type}:<backend>')."
        )


def address(tensor: Tensor) -> int:
    """Where the elements lie; 0 if nowhere, which the engine refuses.

    The result of a functional collective is waited for first, as it is over Gloo.
    """
    begin = tensor.data_ptr()
    if begin >= LOWEST_ADDRESS or begin != tensor.storage_offset() * tensor.itemsize:
        return begin
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    if not isinstance(tensor, AsyncCollectiveTensor):
        return 0
    result: Tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
    return result.data_ptr()


def only_tensor(tensors: Sequence[Tensor], operation: str) -> Tensor:
    """The single tensor of a list: one rank drives one device, so there is never a second."""
    if len(tensors) != 1:
        raise SMDDPConfigInvalid(
            f"{operation} got {len(tensors)} tensors for one rank; expected exactly one. Use the"
            " coalesced form for several."
        )
    return tensors[0]


def in_place(tensor: Tensor, operation: str, device_type: str = "cpu") -> Tensor:
    """Accept a tensor whose memory is used directly, in storage order; no copy is made.

    Raises:
        SMDDPConfigInvalid: the tensor has holes or overlaps itself (a strided or expanded view), or
            its memory does not hold its values.
    """
    check_moves(tensor, operation, device_type)
    _require_literal(tensor, operation)
    if tensor.is_contiguous() or _is_dense(tensor):
        return tensor
    raise SMDDPConfigInvalid(
        f"{operation}: Tensors must be contiguous, but one of shape {tuple(tensor.shape)} has"
        f" strides {tensor.stride()}, so its elements do not fill one block of memory. Pass"
        " tensor.contiguous(), and copy the result back if the call works in place."
    )


def is_plain(tensor: Tensor) -> bool:
    """Whether this is a contiguous tensor in host memory that holds its values: as most are."""
    return (
        tensor.is_cpu
        and tensor.layout is STRIDED
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def is_literal(tensor: Tensor) -> bool:
    """Whether memory holds the values themselves, and not what is to be negated or conjugated."""
    return not (tensor.is_neg() or tensor.is_conj())


def literal(tensor: Tensor) -> Tensor:
    """A tensor of the same values whose memory holds them: itself, if it can be."""
    return tensor if is_literal(tensor) else tensor.resolve_conj().resolve_neg()


def _require_literal(tensor: Tensor, operation: str) -> None:
    if is_literal(tensor):
        return
    kind = "negated" if tensor.is_neg() else "conjugated"
    raise SMDDPConfigInvalid(
        f"{operation}: a lazily {kind} view of shape {tuple(tensor.shape)} cannot be written in"
        " place, since its memory does not hold its values; expected an ordinary tensor. Pass"
        " tensor.resolve_conj().resolve_neg(), and copy the result back."
    )


def storage_order(tensor: Tensor) -> int:
    """In which order the dimensions of a dense tensor lie in memory, as the engine compares it.

    0 for a contiguous tensor. Dimensions of one element do not count: their strides mean nothing.
    """
    if tensor.is_contiguous():
        return 0
    strides, sizes = tensor.stride(), tensor.shape
    counting = [dimension for dimension, size in enumerate(sizes) if size != 1]
    return _native.storage_order(sorted(counting, key=lambda d: -strides[d]))


def contiguous(tensor: Tensor, operation: str, device_type: str = "cpu") -> Tensor:
    """As `in_place`, for operations where the order of elements must be the same on both sides."""
    check_moves(tensor, operation, device_type)
    _require_literal(tensor, operation)
    if tensor.is_contiguous():
        return tensor
    raise SMDDPConfigInvalid(
        f"{operation}: input tensor has to be contiguous, but it has shape {tuple(tensor.shape)}"
        f" and strides {tensor.stride()}. Pass tensor.contiguous(), and copy a received tensor"
        " back."
    )


def staged_input(tensor: Tensor, operation: str, device_type: str = "cpu") -> Tensor:
    """The tensor itself, or a contiguous copy of it."""
    check_moves(tensor, operation, device_type)
    return literal(tensor).contiguous()


def staged_outputs(
    tensors: Sequence[Tensor], operation: str, device_type: str = "cpu"
) -> tuple[Sequence[Tensor], Sequence[tuple[Tensor, Tensor]]]:
    """Contiguous tensors to write into, and (target, source) of the copies to make afterwards."""
    is_plain = True
    for tensor in tensors:
        check_moves(tensor, operation, device_type)
        is_plain = is_plain and tensor.is_contiguous() and is_literal(tensor)
    if is_plain:
        return tensors, ()
    staged = [
        t
        if t.is_contiguous() and is_literal(t)
        else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        for t in tensors
    ]
    pairs = zip(tensors, staged, strict=True)
    # An alias: the result goes to the memory that it was asked for, whatever the tensor gets later.
    return staged, [(tensor.detach(), copy) for tensor, copy in pairs if tensor is not copy]


def movable(dtype: torch.dtype) -> tuple[int, int]:
    """(engine code, engine elements per torch element): types it does not know travel as bytes."""
    code = DTYPE_CODES.get(dtype)
    return (code, 1) if code is not None else (_native.OPAQUE8, dtype.itemsize)


def _is_dense(tensor: Tensor) -> bool:
    """True if the elements fill one block of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _state(op: ReduceOp) -> tuple[Any, Any]:
    """(type, factor); the only way to the factor."""
    state: Any = op.__getstate__()
    return state[0], state[1]


def _op_name(op: ReduceOp) -> str:
    return str(_state(op)[0]).removeprefix("RedOpType.")
