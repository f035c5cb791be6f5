# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What has no data looks as if it had, to code that asks past all operations."""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from smdistributed.modelparallel.torch.delayed_initialization.sources import (
    delayed_like,
    forget,
    plainly,
    source_of,
)
from smdistributed.modelparallel.torch.delayed_initialization.values import (
    Values,
    replace_data,
)

__all__ = ["Disguise", "Past"]

_DEVICE = Tensor.device.__get__
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_LOOKS = {_DEVICE, Tensor.is_meta.__get__}  # type: ignore[attr-defined]
_READS = {Tensor.numpy, Tensor.__array__, Tensor.tolist}
# With these, others can write to the memory.
_LETS_MEMORY_OUT = {
    Tensor.numpy,
    Tensor.__array__,
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.__dlpack__,
    Tensor.share_memory_,
}


class Disguise(TorchFunctionMode):
    """Tensors on the meta device look as if they were on another one.

    Functions of torch.nn.init leave alone what is on the meta device, and many a model makes
    tensors on the device of others, and looks at their values.

    Args:
        device: None: of delayed tensors, that of their values.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _LOOKS and args[0].is_meta:
            device = self._device
            if device is None:
                with plainly():
                    source = source_of(args[0])
                device = None if source is None else source.device
            if device is not None:
                return device if func == _DEVICE else False
        return func(*args, **(kwargs or {}))


class Past(TorchFunctionMode):
    """Sees what uses the memory of tensors past all operations."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _SET_DATA:
            tensor, value = args
            with plainly():
                replace_data(tensor, delayed_like(value) if tensor.is_meta else value)
            return None
        if func not in _READS and func not in _LETS_MEMORY_OUT:
            return func(*args, **kwargs)
        tensor = args[0]
        with plainly():
            source = source_of(tensor)
        if source is None:
            return func(*args, **kwargs)
        if tensor.is_meta and func in _READS:
            value = func(Values().of(tensor).detach(), *args[1:], **kwargs)
            if func is not Tensor.tolist:
                value.setflags(write=False)  # it would not get to the parameter
            return value
        if func in _LETS_MEMORY_OUT and not tensor.is_meta and not source.is_parameters:
            forget(tensor)
        return func(*args, **kwargs)
