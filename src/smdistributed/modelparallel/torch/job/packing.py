# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Any object as a pickle, and the large blocks of memory in it beside the pickle.

Tensors are not left to pickle, which would copy each of them several times and bring it back on
the device it came from. Their bytes are blocks, as those of NumPy arrays are (pickle's protocol 5).
Small blocks go into the pickle: a message of their own would cost more.

What a tensor keeps: dtype, shape, values, attributes that were set on it, whether it was on an
accelerator, and `requires_grad` if it is a leaf. What it does not keep: its strides, its history,
and that it shares memory with others; the same tensor twice in an object stays the same tensor.
Sparse tensors, `nn.Parameter` and other subclasses pickle as torch pickles them, and the tensors
that those are made of as said here.

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smdistributed.modelparallel.job.pickling import LARGE_BYTES, dump, unpickling

__all__ = ["LARGE_BYTES", "Packed", "pack", "unpack"]


@dataclasses.dataclass(frozen=True)
class Packed:
    """An object as bytes: CPU tensors of uint8 with one dimension, not empty.

    Attributes:
        stream: the pickle.
        blocks: what the pickle leaves out, in its order. At the sender these are the memory of the
            object itself, or copies of what lies on an accelerator or has holes.
    """

    stream: Tensor
    blocks: tuple[Tensor, ...] = ()


def pack(obj: Any) -> Packed:
    """The object as bytes; it must not change until they have been sent.

    Raises:
        TypeError: the object does not pickle; the text names its type.
    """
    stream, blocks = dump(obj, _Pickler)
    return Packed(torch.frombuffer(stream, dtype=torch.uint8), tuple(map(_as_tensor, blocks)))


def unpack(packed: Packed, device: torch.device) -> Any:
    """The object; tensors in it may use the memory of the blocks.

    Args:
        packed: what `pack` made, here or on another rank.
        device: where tensors go that were on an accelerator; the others are on the CPU.

    Raises:
        TypeError: what the pickle names is not here, or raises.
    """
    stream: Any = packed.stream.numpy()
    blocks = [block.numpy() for block in packed.blocks]
    with unpickling():
        return _Unpickler(io.BytesIO(stream), blocks, device).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and _is_plain(obj):
            return _restore, _reduced(obj)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, blocks: list[Any], device: torch.device) -> None:
        super().__init__(file, buffers=blocks)
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        found: Any = super().find_class(module, name)
        return functools.partial(_restore, device=self._device) if found is _restore else found


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is its bytes, dtype and shape; others pickle as torch pickles them."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    memory: Any = plain.reshape(-1).view(torch.uint8).numpy()
    return (
        pickle.PickleBuffer(memory),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.device.type != "cpu",
        tensor.is_leaf and tensor.requires_grad,
        tensor.__dict__ or None,
    )


def _restore(
    block: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    was_on_accelerator: bool,
    requires_grad: bool,
    attributes: dict[str, Any] | None,
    device: torch.device | None = None,
) -> Tensor:
    # Inside the pickle a block is bytes, which torch may neither write to nor expect aligned.
    raw = _as_tensor(block) if isinstance(block, np.ndarray) else _as_tensor(block).clone()
    tensor = raw.view(dtype).reshape(shape)
    if was_on_accelerator and device is not None:
        tensor = tensor.to(device)
    if requires_grad:
        tensor.requires_grad_()
    if attributes:
        tensor.__dict__.update(attributes)
    return tensor


def _as_tensor(memory: Any) -> Tensor:
    """A tensor on this memory; on a copy if it is read-only, which torch knows nothing of."""
    array = np.frombuffer(memory, np.uint8)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
