# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's shared memory as a tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from smdistributed.dataparallel.torch.adoption.marks import ADOPTED, mark

__all__ = ["allocate_shared"]


def allocate_shared(engine: Any, nbytes: int, *, zeroed: bool = True) -> Tensor | None:
    """Memory of a `_native.Communicator` in which collectives work without a copy.

    Not a collective: a rank may call it alone. The memory lives as long as the tensor or any view
    of its storage, also beyond the communicator.

    Returns:
        uint8 of shape `[nbytes]`, on the CPU, 128-byte aligned, zeros unless they are not wanted
        (clearing 25 MiB takes milliseconds); or None where there is none to be had (one rank,
        several hosts, TCP, no room left): use ordinary memory then.
    """
    buffer = engine.allocate_shared(nbytes, zeroed)
    if buffer is None:
        return None
    tensor: Tensor = from_dlpack(buffer)
    mark(tensor.untyped_storage(), ADOPTED)  # it need not be moved there
    return tensor
