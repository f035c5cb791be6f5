# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A bucket as torch's communication hooks expect it.

torch's own `GradBucket` can only be made in C++. This has its methods; hooks written for torch's
class, such as those of `torch.distributed.algorithms.ddp_comm_hooks`, need no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from smdistributed.dataparallel.torch.parallel.buckets import Bucket

__all__ = ["CommHook", "HookBucket", "hook_result"]

CommHook = Callable[[Any, Any], Any]
"""`hook(state, bucket)`, which returns a future of the reduced buffer."""


class HookBucket:
    """Stands in for `torch.distributed.GradBucket`.

    The buffer holds zeros between gradients where these are not multiples of 128 bytes long.
    """

    def __init__(self, bucket: Bucket, num_buckets: int) -> None:
        assert bucket.buffer is not None
        self._bucket = bucket
        self._buffer = bucket.buffer
        self._is_last = bucket.index == num_buckets - 1

    def index(self) -> int:
        """Place of the bucket in the order of reduction."""
        return self._bucket.index

    def buffer(self) -> Tensor:
        """All gradients, 1-d; they have not been divided by the world size."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Make `buffer()` return something else, for example a compressed copy."""
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """The gradients, as views."""
        return [slot.view for slot in self._bucket.slots if slot.view is not None]

    def parameters(self) -> list[Tensor]:
        """The parameters that the gradients belong to."""
        return [slot.parameter for slot in self._bucket.slots]

    def is_last(self) -> bool:
        """Whether no bucket follows in this step."""
        return self._is_last


def hook_result(future: Any) -> Tensor:
    """Wait for a hook's future and return the tensor in it, which may stand in a list of one."""
    value = future.wait()
    result: Tensor = value[0] if isinstance(value, (list, tuple)) else value
    return result
