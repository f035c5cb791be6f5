# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras` over `smdistributed.dataparallel.tensorflow.keras`.

    import smdistributed.compat.horovod.tensorflow.keras as hvd

in place of `import horovod.tensorflow.keras as hvd`. Keras 3 and tf-keras.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

import smdistributed.dataparallel.tensorflow.keras as sdp_keras
from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.tensorflow import functions, mpi_ops
from smdistributed.compat.horovod.tensorflow.gradients import (
    distributed_optimizer,
    require_no_local_layers,
)
from smdistributed.compat.horovod.tensorflow.job import require_no_model_parallelism
from smdistributed.compat.horovod.tensorflow.keras import callbacks, elastic
from smdistributed.compat.horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    ProcessSet,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from smdistributed.dataparallel.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802 -- Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """As `DistributedOptimizer` of the package above, with its arguments in another order."""
    return distributed_optimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
    )


def PartialDistributedOptimizer(  # noqa: N802 -- Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer`, without local layers. Raises `SMDDPUnsupported` with some."""
    require_no_local_layers("PartialDistributedOptimizer", local_layers)
    return DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a value over all ranks, as `allreduce` of the package above.

    At once, also in a graph of TensorFlow 1: there it gives an array.
    """
    return _evaluated(
        mpi_ops.allreduce(
            tf.convert_to_tensor(value),
            average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The rows of all ranks, as `allgather` of the package above; at once, as `allreduce`."""
    return _evaluated(mpi_ops.allgather(tf.convert_to_tensor(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of one rank, as `broadcast` of the package above; at once, as `allreduce`."""
    return _evaluated(mpi_ops.broadcast(tf.convert_to_tensor(value), root_rank, name))


reducescatter = common.refused(
    "reducescatter",
    "the TensorFlow side scatters no sums",
    "Call hvd.allreduce() and take this rank's part of the result.",
)


def broadcast_global_variables(root_rank: int) -> Any:
    """Sets all global variables of the graph of a TensorFlow 1 session to those of one rank.

    Raises:
        SMDDPError: (a RuntimeError) with eager execution.
    """
    return _evaluated(functions.broadcast_global_variables(root_rank))


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model, and makes its optimizer a `DistributedOptimizer`, which keeps its state.

    As `smdistributed.dataparallel.tensorflow.keras.load_model`; the optimizer gathers
    `tf.IndexedSlices`, as Horovod's does.
    """
    require_no_model_parallelism("load_model")
    return sdp_keras.load_model(
        filepath,
        custom_optimizers,
        custom_objects,
        compression,
        legacy_opts,
        sparse_as_dense=False,
    )


def _evaluated(tensor: Any) -> Any:
    if tf.executing_eagerly():
        return tensor
    return tf.compat.v1.keras.backend.get_session().run(tensor)
