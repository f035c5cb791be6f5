# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Modules around the user's module, which show what they wrap, and which modules can be wrapped.

Source: modelparallel specification, sections 4.4 (`module`) and 8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Wrapper", "check_module"]


class Wrapper(nn.Module):
    """Has the attributes of what it wraps, beside its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the wrapped module returns."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)


def check_module(module: object) -> None:
    """Whether the parts of a module can be put on several ranks.

    Raises:
        TypeError: it is none, or something in it is distributed already.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"smp.DistributedModel got {type(module).__name__}; expected a torch.nn.Module."
        )
    for name, part in module.named_modules():
        if isinstance(part, (DistributedDataParallel, nn.DataParallel)) or _is_fully_sharded(part):
            raise TypeError(
                f"{name or 'the module'} is a {type(part).__name__}; expected modules that no other"
                " library distributes. Wrap the plain module, and set ddp: True for replicas."
            )
        if isinstance(part, Wrapper):
            raise TypeError("a DistributedModel was wrapped again; expected the plain module.")
        own = (*part.named_parameters(name, recurse=False), *part.named_buffers(name, False))
        for path, tensor in own:
            if nn.parameter.is_lazy(tensor):
                raise TypeError(
                    f"{path} of {type(part).__name__} has no shape yet; expected one, by which the"
                    " model is divided. Run the module on a small batch before it is wrapped."
                )
            if _is_distributed(tensor):
                raise TypeError(
                    f"{path} is a DTensor; expected tensors that no other library distributes, as"
                    " parts of one cannot be put on another rank yet. Wrap the module before it is"
                    " distributed, or give it tensor.full_tensor()."
                )


def _is_distributed(tensor: torch.Tensor) -> bool:
    """By name: its module takes a while to import."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def _is_fully_sharded(module: nn.Module) -> bool:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return bool(kinds & {"FullyShardedDataParallel", "FSDPModule"})
