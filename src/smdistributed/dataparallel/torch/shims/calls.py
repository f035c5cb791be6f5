# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`torch.cuda.set_device`, `Module.cuda` and `Tensor.cuda`: the calls that every old script makes.

Two changes. A device index given as text ("0", from `os.environ["LOCAL_RANK"]`, as in the published
sample) becomes a number, always. And where this process may do without CUDA and there is none,
`set_device` remembers the index and `.cuda()` returns what it was called on.

Source: specification, section 4.6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from smdistributed.dataparallel.torch.notices import inform_once
from smdistributed.dataparallel.torch.shims.patches import Patches

__all__ = ["chosen_index", "forget", "install", "stands_in"]

# As found at import: `questions` may answer differently later on.
_is_cuda_available: Callable[[], bool] = torch.cuda.is_available

_may_stand_in = False
_chosen_index = 0


def install(patches: Patches, *, may_stand_in: bool) -> None:
    """Wraps the three calls; without `may_stand_in` only text indexes are changed."""
    global _may_stand_in
    _may_stand_in = may_stand_in
    patches.wrap(torch.cuda, "set_device", _wrap_set_device)
    patches.wrap(torch.nn.Module, "cuda", functools.partial(_wrap_cuda, "Module.cuda()"))
    # torch.compile traces with a class of its own, which does not inherit this method.
    for tensor_class in (torch.Tensor, FunctionalTensor):
        patches.wrap(tensor_class, "cuda", functools.partial(_wrap_cuda, "Tensor.cuda()"))


def forget() -> None:
    """Back to the state before `install`."""
    global _may_stand_in, _chosen_index
    _may_stand_in = False
    _chosen_index = 0
    _has_cuda.cache_clear()


def stands_in() -> bool:
    """True if the CPU takes the place of CUDA: the mode allows it, and there is no CUDA.

    The first call may start the CUDA driver; see the package's docstring.
    """
    return _may_stand_in and not _has_cuda()


def chosen_index() -> int:
    """The device index that the script has last chosen by `set_device`; 0 before."""
    return _chosen_index


@functools.cache
def _has_cuda() -> bool:
    return _is_cuda_available()


def _as_index(device: Any) -> Any:
    """Decimal text becomes an int; anything else stays as it is."""
    if not (isinstance(device, str) and device.isascii() and device.isdigit()):
        return device
    inform_once("text index", f"the device index '{device}', given as text, is taken as a number")
    return int(device)


def _wrap_set_device(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def set_device(device: Any) -> None:
        global _chosen_index
        device = _as_index(device)
        if not stands_in():
            original(device)
            return
        inform_once("set_device", "torch.cuda.set_device() has no effect: there is no CUDA here")
        index: int | None = device if isinstance(device, int) else torch.device(device).index
        # Negative means "leave it", as in CUDA.
        if index is not None and index >= 0:
            _chosen_index = index

    return set_device


def _wrap_cuda(title: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cuda(self: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if stands_in():
            inform_once(title, f"{title} leaves things on the CPU: there is no CUDA here")
            return self
        return original(self, _as_index(device), *args, **kwargs)

    return cuda
