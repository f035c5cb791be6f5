# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How a bucket is averaged over the ranks of a group; when, `reducer.py` decides.

Groups of ours compute the average themselves: in 32 bits for 16-bit types, rounded once. Other
groups get buckets that are divided beforehand, as do all groups where the divisor is not the world
size. Inf and NaN reach all ranks either way. A communication hook takes the place of all that.

Source: dataparallel specification, sections 5.2 and 6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import AllreduceOptions, ReduceOp

from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.torch.parallel.buckets import Bucket
from smdistributed.dataparallel.torch.parallel.comm_hook import CommHook, HookBucket, hook_result
from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp

__all__ = ["Averager"]


class Averager:
    """Averages buckets over the ranks of a group.

    Args:
        group: a torch process group.

    Thread rule: one call at a time, in the same order on all ranks.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._comm_hook: tuple[CommHook, Any] | None = None

    def set_comm_hook(self, hook: CommHook, state: Any) -> None:
        """Let `hook(state, bucket)` reduce instead; its result is taken as the average.

        Raises:
            SMDDPUnsupported: there is a hook already.
        """
        if self._comm_hook is not None:
            raise SMDDPUnsupported(
                "register_comm_hook was called a second time; expected one hook for the life of the"
                " wrapper, as with torch's. Combine the two hooks, or wrap the model anew."
            )
        self._comm_hook = (hook, state)

    def start(
        self, bucket: Bucket, num_buckets: int, active_ranks: Callable[[], float] | None
    ) -> Any:
        """Start to average a bucket, in place; does not block.

        Args:
            bucket: allocated; its buffer must be left alone until `wait` returns.
            num_buckets: of the step.
            active_ranks: gives what the sum is divided by; None divides by the world size.

        Returns:
            A handle, for `wait` only.
        """
        if self._comm_hook is not None:
            hook, state = self._comm_hook
            return hook(state, HookBucket(bucket, num_buckets))
        assert bucket.buffer is not None
        options = AllreduceOptions()
        options.asyncOp = True
        if active_ranks is None and isinstance(self._group, ProcessGroupSmddp):
            options.reduceOp = ReduceOp(ReduceOp.AVG)
        else:
            ranks = self._group.size() if active_ranks is None else active_ranks()
            if ranks != 1:
                bucket.buffer.mul_(1 / ranks)
        return self._group.allreduce([bucket.buffer], options)

    def wait(self, buckets: Sequence[Bucket], handles: Sequence[Any]) -> None:
        """Block until the buckets hold averages; `handles` are those of `start`, in this order."""
        for bucket, handle in zip(buckets, handles, strict=True):
            if self._comm_hook is None:
                handle.wait()
                continue
            result = hook_result(handle)
            assert bucket.buffer is not None
            if result.data_ptr() != bucket.buffer.data_ptr() or result.dtype != bucket.buffer.dtype:
                bucket.buffer.copy_(result)

    def maximum(self, values: Tensor) -> None:
        """Replace each element by the largest of all ranks'. Blocks."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        options.asyncOp = True
        self._group.allreduce([values], options).wait()
