# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`barrier` and `join`: ranks that wait for each other.

Source: our choice: Horovod's names.
"""

from __future__ import annotations

import time

import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of

__all__ = ["barrier", "join"]


@not_converted
def barrier(*, group: Group | None = None) -> None:
    """Waits until all ranks have called it, and all that they called before is done.

    Eagerly, and in `tf.function`, where it has its place among the collectives.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPUnsupported: in a graph of TensorFlow 1, where nobody would run it.

    Source: our choice: Horovod's name.
    """
    among = resolve_group(group, "barrier()")
    if not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function:
        raise SMDDPUnsupported(
            "barrier() was called while a graph of TensorFlow 1 is made, which would not run it;"
            " expected eager execution or tf.function. Run oob_allreduce() of a constant instead."
        )
    if among.size() > 1:
        key = "barrier()"
        operations.all_gather(tf.zeros([1], tf.uint8), key, label_of(key), group=among.number)


_JOIN = (
    "join() (which all ranks must call after equally many collectives: give all ranks the same"
    " number of batches, or leave out the rest)"
)


@not_converted
def join(*, group: Group | None = None) -> int:
    """Waits until all ranks have run out of data; which of them was the last.

    All ranks call it after the same number of collectives: nothing is negotiated here, so a rank
    that is done cannot answer for gradients that others still reduce. Give all ranks the same
    number of batches: `dataset.take(smallest_number)`, or `steps_per_epoch=`.

    Returns:
        The rank (in the group) that called it last, by the clocks of the hosts; the same on all.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPUnsupported: while a graph is made.
        SMDDPMismatch: on all ranks: one of them calls something else, such as another step.

    Source: our choice: Horovod's name; see docs/tensorflow.md.
    """
    among = resolve_group(group, "join()")
    if not tf.executing_eagerly():
        raise SMDDPUnsupported(
            "join() was called while a graph is made, where a rank has not run out of data yet;"
            " expected eager execution. Call it after the loop, outside of tf.function."
        )
    if among.size() == 1:
        return 0
    now = tf.constant([time.time_ns()], tf.int64)
    came = operations.all_gather(now, _JOIN, label_of("join()"), group=among.number)
    return int(tf.argmax(came))
