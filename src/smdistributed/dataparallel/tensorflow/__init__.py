# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data parallel training with TensorFlow 2: one process for each GPU, or several on a CPU.

    import tensorflow as tf
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[sdp.local_rank()], "GPU")
    optimizer = tf.keras.optimizers.Adam(0.001 * sdp.size())

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = sdp.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        if first_batch:
            sdp.broadcast_variables(model.variables, root_rank=0)
            sdp.broadcast_variables(optimizer.variables, root_rank=0)
        return sdp.oob_allreduce(loss)

Start it with `smddprun -np 4 python script.py`, torchrun, mpirun or srun. With `model.fit`, see
`DistributedOptimizer` and `smdistributed.dataparallel.tensorflow.keras`.

Every function but `init`, `shutdown` and `overlap` raises `SMDDPNotInitialized` before `init()`.
Those that communicate must be called by all ranks in the same order.

Source: dataparallel specification, section 7.1.
"""

from __future__ import annotations

import importlib
from typing import Any

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"smdistributed.dataparallel.tensorflow needs TensorFlow, which cannot be imported"
        f" ({error}); expected TensorFlow 2. Run: pip install smdistributed-open[tensorflow]"
    ) from error

if int(tf.__version__.partition(".")[0]) < 2:
    raise ImportError(
        f"smdistributed.dataparallel.tensorflow found TensorFlow {tf.__version__}; expected"
        " TensorFlow 2. Run: pip install smdistributed-open[tensorflow]"
    )

from smdistributed.dataparallel.compression import Compression
from smdistributed.dataparallel.tensorflow import remedies
from smdistributed.dataparallel.tensorflow.broadcasts import (
    BroadcastGlobalVariablesHook,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    overlap,
)
from smdistributed.dataparallel.tensorflow.gathers import allgather, grouped_allgather
from smdistributed.dataparallel.tensorflow.gradient_tape import DistributedGradientTape
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import (
    close_group,
    init,
    is_initialized,
    local_rank,
    local_size,
    new_group,
    rank,
    shutdown,
    size,
)
from smdistributed.dataparallel.tensorflow.objects import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
)
from smdistributed.dataparallel.tensorflow.optimizers import DistributedOptimizer
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp
from smdistributed.dataparallel.tensorflow.reductions import (
    allreduce,
    grouped_allreduce,
    oob_allreduce,
)
from smdistributed.dataparallel.tensorflow.synchronization import barrier, join

__all__ = [  # noqa: RUF022 - in the order of the specification; then ours
    "init",
    "size",
    "local_size",
    "rank",
    "local_rank",
    "allreduce",
    "oob_allreduce",
    "broadcast",
    "broadcast_variables",
    "broadcast_global_variables",
    "overlap",
    "shutdown",
    "DistributedOptimizer",
    "DistributedGradientTape",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "ReduceOp",
    "keras",
    # Ours.
    "Group",
    "close_group",
    "new_group",
    # Horovod's.
    "Average",
    "Max",
    "Min",
    "Sum",
    "allgather",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_object_fn",
    "grouped_allgather",
    "grouped_allreduce",
    "is_initialized",
    "join",
]

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX

remedies.install()


def __getattr__(name: str) -> Any:
    """Imports the `keras` subpackage when it is asked for: it needs Keras, which takes a second."""
    if name == "keras":
        return importlib.import_module("smdistributed.dataparallel.tensorflow.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
