# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow` over `smdistributed.dataparallel.tensorflow`.

    import smdistributed.compat.horovod.tensorflow as hvd

in place of `import horovod.tensorflow as hvd`. What this library does not do has its name here all
the same, so that scripts import it; to use it raises `SMDDPUnsupported`, which says what to write
instead.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.tensorflow import elastic
from smdistributed.compat.horovod.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from smdistributed.compat.horovod.tensorflow.gradients import (
    DistributedGradientTape,
    DistributedOptimizer,
    LocalGradientAggregationHelper,
    PartialDistributedGradientTape,
)
from smdistributed.compat.horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    handle_average_backwards_compatibility,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    reducescatter,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from smdistributed.dataparallel.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]

SyncBatchNormalization = common.refused_class(
    "SyncBatchNormalization",
    "no layer averages its statistics over the ranks",
    "Use tf.keras.layers.BatchNormalization with a larger batch on each rank, or"
    " tf.keras.layers.GroupNormalization, which does not depend on the batch.",
    tf.Module,
)


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 -- Horovod's argument
    """References of variables, of a list or lists of lists as tuples, which can be hashed."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of references that `vars_to_refs` made."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()


def __getattr__(name: str) -> Any:
    """Imports the `keras` subpackage when it is asked for: it needs Keras, which takes a second.

    It is not in `__all__`: the stand-in imports all that is.
    """
    if name == "keras":
        return importlib.import_module(f"{__name__}.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
