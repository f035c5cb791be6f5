# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas of TensorFlow's own in a process, as of `tf.distribute.MirroredStrategy`.

Source: our choice.
"""

from __future__ import annotations

import tensorflow as tf

__all__ = ["refuse_strategy"]


def refuse_strategy(does: str) -> None:
    """Fails where a strategy with several replicas holds.

    Args:
        does: what would be done there, in words.

    Raises:
        RuntimeError: it holds.
    """
    strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(
            f"{does} under {type(strategy).__name__} with {replicas} replicas, which would share"
            " this process; expected a process for each rank. Leave the strategy out. For replicas"
            ' set "horovod": True, and start more processes than partitions.'
        )
