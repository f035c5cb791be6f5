# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives as TensorFlow operations: eagerly, in `tf.function`, in graphs of TensorFlow 1.

Two ways to carry them out, one interface:

    calls              the interface
    backend            which of the two ways, and the groups that are open
    kernels            asynchronous kernels through TensorFlow's C API; they hold no thread
    python_functions   `tf.numpy_function`, where this TensorFlow does not take the kernels
    gradients          of all of them
    order              what keeps them in the order of the program, on all ranks
    session_order      the same in graphs of TensorFlow 1
    labels             what the ranks compare besides sizes: purpose, name, place
    builds             which builds of TensorFlow take the kernels
    uncaught           the last line of an error that ends the script
    interrupts         Ctrl-C while TensorFlow waits
    raising            an error whose text comes from the graph

Bucketing, averaging of integers, sparse tensors and so on are for the callers; here every call is
one collective on tensors of one dtype.

Source: our choice; see docs/tensorflow.md.
"""

from smdistributed.dataparallel.tensorflow.operations import (
    gradients,  # noqa: F401  (for its effect)
)
from smdistributed.dataparallel.tensorflow.operations.backend import (
    begin,
    close_group,
    end,
    open_group,
)
from smdistributed.dataparallel.tensorflow.operations.calls import (
    all_gather,
    all_reduce,
    broadcast,
)

__all__ = ["all_gather", "all_reduce", "begin", "broadcast", "close_group", "end", "open_group"]
