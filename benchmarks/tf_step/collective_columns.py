# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to sum one tensor over all ranks. Each call ends when its result is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp

Call = Callable[[], Any]

# TensorFlow tells its own collectives apart by these, which must not be used twice.
_GROUP_KEY = 4711
_FIRST_INSTANCE_KEY = 100_000


class Collectives:
    """The columns for tensors of one size.

    Args:
        strategy: `tf.distribute.MultiWorkerMirroredStrategy` over the same processes.
        num_bytes: of the tensor, float32.
        number: tells this size from the others.
    """

    def __init__(self, strategy: Any, num_bytes: int, number: int) -> None:
        self._strategy = strategy
        self._x = tf.constant(np.arange(num_bytes // 4) % 1000 + 1000 * sdp.rank(), tf.float32)
        self._expected = sum(
            np.arange(num_bytes // 4) % 1000 + 1000.0 * rank for rank in range(sdp.size())
        )
        self._instance_key = _FIRST_INSTANCE_KEY + 10 * number
        self._group = sdp.new_group(range(sdp.size()))

    def columns(self) -> dict[str, Call]:
        """By name; verified.

        Raises:
            AssertionError: a sum is wrong.
        """
        ours = tf.function(self._ours, autograph=False)
        in_group = tf.function(self._in_group, autograph=False)
        raw = tf.function(self._raw, autograph=False)
        strategy = tf.function(self._by_strategy, autograph=False)
        nothing = tf.function(tf.negative, autograph=False)
        found: dict[str, Call] = {
            "smddp": lambda: ours(self._x),
            "group": lambda: in_group(self._x),
            "tensorflow": lambda: raw(self._x),
            "strategy": lambda: strategy(self._x),
            "nothing": lambda: nothing(self._x),
            "smddp-eager": lambda: self._ours(self._x),
            "tensorflow-eager": lambda: self._raw(self._x, 1),
        }
        for name, call in found.items():
            if name != "nothing":
                np.testing.assert_allclose(call().numpy(), self._expected, err_msg=name)
        return found

    def _ours(self, x: Any) -> Any:
        return sdp.oob_allreduce(x, op=sdp.ReduceOp.SUM)

    def _in_group(self, x: Any) -> Any:
        """The same in a group of its own, of all ranks."""
        return sdp.oob_allreduce(x, op=sdp.ReduceOp.SUM, group=self._group)

    def _raw(self, x: Any, offset: int = 0) -> Any:
        """The operation under every strategy of `tf.distribute`, as a ring."""
        return tf.raw_ops.CollectiveReduceV2(
            input=x,
            group_size=sdp.size(),
            group_key=_GROUP_KEY,
            instance_key=self._instance_key + offset,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
        )

    def _by_strategy(self, x: Any) -> Any:
        """`all_reduce` of a replica's context, the documented way to that operation."""

        def replica(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

        return self._strategy.run(replica, args=(x,))
