# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data parallel training with Keras: what `model.fit` needs.

    import smdistributed.dataparallel.tensorflow.keras as sdp

    sdp.init()
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.Adam(1e-3 * sdp.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(
        ...,
        callbacks=[
            sdp.callbacks.BroadcastGlobalVariablesCallback(0),
            sdp.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if sdp.rank() == 0 else 0,
    )

Keras 3 and tf-keras, through `tf.keras` or by themselves. The job is the one of
`smdistributed.dataparallel.tensorflow`: `init()` here or there counts once.

Source: dataparallel specification, section 8.
"""

from __future__ import annotations

from typing import Any

from smdistributed.dataparallel.compression import Compression
from smdistributed.dataparallel.tensorflow import optimizers
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
from smdistributed.dataparallel.tensorflow.keras import callbacks
from smdistributed.dataparallel.tensorflow.keras.loading import load_model
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "Group",
    "ReduceOp",
    "callbacks",
    "close_group",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "new_group",
    "rank",
    "shutdown",
    "size",
]


def DistributedOptimizer(  # noqa: N802 -- the published name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = True,
    op: Any = None,
    bucket_cap_mb: Any = optimizers.DEFAULT_BUCKET_CAP_MB,
    *,
    group: Group | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """As `smdistributed.dataparallel.tensorflow.DistributedOptimizer`, without `use_locking`.

    Source: specification, section 8.
    """
    return optimizers.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        bucket_cap_mb=bucket_cap_mb,
        group=group,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
    )
