# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`SMDDP_CPU_SHIM=full`: wherever torch is told to use the device `cuda`, it uses `cpu`.

`torch.device("cuda", n)` can be made on any machine and keeps its name; what fails is its use. So
the functions that take a device are wrapped, and change that one argument:

    x.to(device), model.to("cuda:0")            Tensor.to, Module.to
    torch.zeros(2, device=device), nn.Linear(2, 2, device=device)      the factories
    x.new_zeros(2, device=device), x.pin_memory()                      methods that make tensors
    torch.set_default_device("cuda"), with torch.device("cuda"):       one class behind both
    torch.load(path, map_location="cuda:0")     a restorer for the location `cuda:*`
    init_process_group(device_id=device), init_device_mesh("cuda", ...)
    torch.cuda.FloatTensor(2), x.type("torch.cuda.FloatTensor")        tensor types of old

**Why functions, not a mode.** torch's own means, `TorchFunctionMode`, takes every call of every
function of torch through Python; belongs to one thread, so it is missing in threads that a script
starts; and makes torch.compile guard on it. A replaced function costs nothing elsewhere, is there
in all threads and in the forked workers of a DataLoader (spawned ones import the script and thereby
install it again), and torch.compile traces into it like into any function of the user's. What it
cannot reach is a name imported earlier (`from torch import zeros` above the import of this
library). And code that compares functions (`func is torch.Tensor.to`, in `__torch_function__`) sees
two of them: torch still hands out its own.

Source: specification, section 4.6; which functions, is our choice: what takes a device and is
called by training scripts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.jit import _builtins
from torch.storage import TypedStorage, UntypedStorage
from torch.utils import _device

from smdistributed.dataparallel.torch.notices import inform_once
from smdistributed.dataparallel.torch.shims.patches import Patches

__all__ = ["install", "on_cpu"]

_CPU = torch.device("cpu")

# All take `device` and `pin_memory` by keyword only.
_FACTORIES = (
    "arange",
    "as_tensor",
    "asarray",
    "bartlett_window",
    "blackman_window",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "range",
    "scalar_tensor",
    "sparse_coo_tensor",
    "sparse_csr_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
    "zeros_like",
)

_METHODS = (
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
)

_TENSOR_TYPES = (
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
)

# Between torch's restorers for "cpu" (10) and "cuda" (20). No two may have one number.
_RESTORER_PRIORITY = 15


def on_cpu(device: Any) -> Any:
    """Returns the device to use where `device` was asked for: CUDA becomes the CPU.

    Args:
        device: `torch.device`, name ("cuda", "cuda:1", "1"), index, or anything else, which is
            returned as it is.
    """
    if not _is_cuda(device):
        return device
    if not torch.compiler.is_compiling():  # the log is nothing to trace
        inform_once("mapping", "the device cuda is taken as the cpu: there is no CUDA here")
    return _CPU


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda" or device.isdigit()
    # An index names a device of the accelerator.
    return isinstance(device, int) and not isinstance(device, bool)


def install(patches: Patches) -> None:
    """Wraps what takes a device."""
    for name in _FACTORIES:
        patches.wrap(torch, name, _wrap_factory)
        # TorchScript knows a builtin by its identity.
        _builtins._register_builtin(getattr(torch, name), f"aten::{name}")
    for name in _METHODS:
        patches.wrap(torch.Tensor, name, _wrap_factory)
    patches.wrap(torch.Tensor, "to", _wrap_to)
    patches.wrap(torch.nn.Module, "to", _wrap_to)
    # There is no memory to pin for, and torch raises.
    patches.wrap(torch.Tensor, "pin_memory", _wrap_with_self)
    patches.wrap(_device.DeviceContext, "__init__", _wrap_device_context)
    _install_loading(patches)
    _install_groups(patches)
    _install_tensor_types(patches)


def _wrap_factory(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return original(*args, **kwargs)

    return make


def _wrap_to(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            # The first may also be a dtype or a tensor, which on_cpu leaves alone.
            return original(self, on_cpu(args[0]), *args[1:], **kwargs)
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return original(self, **kwargs)

    return to


def _wrap_with_self(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def return_self(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self

    return return_self


def _wrap_device_context(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, device: Any) -> None:  # noqa: N807 (it takes the place of one)
        original(self, on_cpu(device))

    return __init__


def _install_loading(patches: Patches) -> None:
    """Checkpoints whose tensors were on CUDA, and `map_location` in all its forms."""
    restorer = (_RESTORER_PRIORITY, _tag_nothing, _restore_on_cpu)
    registry = torch.serialization._package_registry
    patches.replace(torch.serialization, "_package_registry", sorted([*registry, restorer]))
    # For `map_location=lambda storage, location: storage.cuda(local_rank)`.
    for storage_type in (UntypedStorage, TypedStorage):
        patches.wrap(storage_type, "cuda", _wrap_with_self)


def _tag_nothing(storage: Any) -> None:
    """Storages are saved as torch itself says."""


def _restore_on_cpu(storage: Any, location: str) -> Any:
    return storage if location.partition(":")[0] == "cuda" else None


def _install_groups(patches: Patches) -> None:
    init_process_group = _wrap_init_process_group(dist.init_process_group)
    for module in (dist, distributed_c10d):
        patches.replace(module, "init_process_group", init_process_group)
    patches.wrap(DeviceMesh, "__init__", _wrap_device_mesh)


def _wrap_init_process_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        # torch binds groups to accelerators only.
        if "device_id" in kwargs and on_cpu(kwargs["device_id"]) == _CPU:
            kwargs["device_id"] = None
        original(*args, **kwargs)

    return init_process_group


def _wrap_device_mesh(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return __init__


def _install_tensor_types(patches: Patches) -> None:
    for name in _TENSOR_TYPES:
        patches.replace(torch.cuda, name, getattr(torch, name))
    patches.wrap(torch.Tensor, "type", _wrap_type)
    patches.wrap(torch, "set_default_tensor_type", _wrap_set_default_tensor_type)


def _wrap_type(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return original(self, *args, **kwargs)
        return original(self, _cpu_type_name(dtype), *args, **kwargs)

    return type_


def _wrap_set_default_tensor_type(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        original(_cpu_type_name(t))

    return set_default_tensor_type


def _cpu_type_name(dtype: Any) -> Any:
    return dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype
