# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`DistributedDataParallel(model, device_ids=[local_rank])` with a model on the CPU.

torch refuses `device_ids` and `output_device` for such a model. They say where the one copy of the
model lies, so on the CPU there is nothing that they could change. The constructor of torch's own
class is wrapped, since scripts import the class under names of their own, and classes derived from
it, such as the legacy one, come through it too.

Source: specification, section 4.6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from smdistributed.dataparallel.torch.notices import warn_once
from smdistributed.dataparallel.torch.shims.calls import stands_in
from smdistributed.dataparallel.torch.shims.patches import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Wraps the constructor."""
    patches.wrap(DistributedDataParallel, "__init__", _wrap_constructor)


def _wrap_constructor(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(  # noqa: N807 (it takes the place of one)
        self: Any,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if (device_ids or output_device is not None) and stands_in() and _is_on_cpu(module):
            given = {"device_ids": device_ids, "output_device": output_device}
            listed = ", ".join(
                f"{name}={value!r}" for name, value in given.items() if value is not None
            )
            warn_once(
                "device_ids",
                f"DistributedDataParallel: {listed} left out, as there is no CUDA here; a model on"
                " the CPU takes no device. Pass none to be rid of this line.",
            )
            device_ids = output_device = None
        original(self, module, device_ids, output_device, *args, **kwargs)

    return __init__


def _is_on_cpu(module: torch.nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in module.parameters())
