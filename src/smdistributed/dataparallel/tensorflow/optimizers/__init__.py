# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`, for the optimizers of Keras 3, of tf-keras and of TensorFlow 1.

    reducer    what all of Keras's share
    keras3     Keras 3, its loss scaling, and what `compile` must not choose
    tf_keras   tf-keras: the optimizers and the legacy ones
    session    `tf.compat.v1.train.Optimizer`

No Keras is imported here: an optimizer of one can only come from a process that has done so.

Source: dataparallel specification, section 7.7.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.compression import Compression, resolve_compression
from smdistributed.dataparallel.engine_errors import documented_errors
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.fusion import parse_bucket_cap
from smdistributed.dataparallel.tensorflow.gradient_reduction import require_no_devices
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.optimizers.accumulation import checked_passes
from smdistributed.dataparallel.tensorflow.optimizers.reducer import (
    GradientReducer,
    make_distributed,
    reducer_of,
)
from smdistributed.dataparallel.tensorflow.reduce_op import GRADIENT_OPS, ReduceOp, resolve_op

__all__ = ["DEFAULT_BUCKET_CAP_MB", "DistributedOptimizer"]


class _Unset(int):
    """A number that can be told from the same one given by a script."""


# The documented default. Who leaves it gets `SMDDP_BUCKET_CAP_MB`, which is 25 unless it is set.
DEFAULT_BUCKET_CAP_MB = _Unset(25)


def DistributedOptimizer(  # noqa: N802 -- the published name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = True,
    op: Any = ReduceOp.AVERAGE,
    bucket_cap_mb: Any = DEFAULT_BUCKET_CAP_MB,
    *,
    group: Group | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Makes an optimizer reduce gradients over all ranks before it uses them.

    Every rank calls it, and then trains as one process would: `model.compile(optimizer=...)` and
    `fit`, or `apply_gradients` in a loop of its own. Clipping follows reduction. Use either this or
    `DistributedGradientTape`; with both, gradients are reduced once, and a warning says so.

    Args:
        optimizer: of Keras 3, of tf-keras (also `optimizers.legacy`), also a `LossScaleOptimizer`
            of them; or a `tf.compat.v1.train.Optimizer`. One of Keras is changed in place, and
            stays an instance of its class; a model may have been compiled with it already.
        name: of the optimizer; default: `smdistributed.dataparallel` and the name of its type.
        use_locking: for `tf.compat.v1.train.Optimizer`; others have no locks.
        device_dense, device_sparse: must be empty.
        compression: `Compression.none`, `Compression.fp16`, or a class like them.
        sparse_as_dense: make `tf.IndexedSlices` dense before they are reduced; False: gather them.
        op: `ReduceOp.AVERAGE`, which None stands for, or `ReduceOp.SUM`.
        bucket_cap_mb: size of the fusion buffers in MiB, of which 128 bytes must be a part;
            default: `SMDDP_BUCKET_CAP_MB`.
        group: of `new_group`, whose ranks' gradients are averaged; None: all ranks.
        backward_passes_per_step: add up the gradients of so many batches on each rank, reduce the
            sums and apply them in the last of these steps; the others change no weight, and
            `iterations` counts updates. With loss scaling every step reduces. Keras 3 saves the
            number with the optimizer, as its own `gradient_accumulation_steps`.
        average_aggregated_gradients: divide these sums by their number of batches.

    Returns:
        The optimizer: the object that was given, if it is one of Keras. What `get_config` says and
        a model saves is Keras's own, and loads without this library; so after loading, call this
        function again: `DistributedOptimizer(model.optimizer)`.

    Raises:
        SMDDPUnsupported: a device is set; Keras 3 does not run on TensorFlow.
        SMDDPConfigInvalid: (a ValueError) MIN or MAX; no such compression; a `bucket_cap_mb` or
            `backward_passes_per_step` that cannot be; no optimizer, or one that is distributed
            already.

    Source: specification, section 7.7.
    """
    require_no_devices(device_dense, device_sparse)
    with documented_errors():
        default_cap = process_settings().bucket_cap_bytes
    arguments: dict[str, Any] = {
        "op": resolve_op(op, "DistributedOptimizer", GRADIENT_OPS),
        "compression": resolve_compression(compression),
        "sparse_as_dense": sparse_as_dense,
        "bucket_cap_bytes": parse_bucket_cap(
            None if bucket_cap_mb is DEFAULT_BUCKET_CAP_MB else bucket_cap_mb, default_cap
        ),
        "group": group,
        "passes": checked_passes(backward_passes_per_step),
        "is_average_of_passes": bool(average_aggregated_gradients),
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from smdistributed.dataparallel.tensorflow.optimizers import session

        return session.distributed(optimizer, name=name, use_locking=use_locking, **arguments)
    if reducer_of(optimizer) is not None:
        raise SMDDPConfigInvalid(
            f"{_describe(optimizer)} is a DistributedOptimizer already; expected one that is not."
            " Wrap each optimizer once."
        )
    inner = _inner_of_loss_scaling(optimizer)
    mixin = _mixin(inner, given=optimizer)
    if arguments["passes"] > 1 and hasattr(inner, "stateless_apply"):
        from smdistributed.dataparallel.tensorflow.optimizers import keras3

        keras3.accumulate(inner, arguments["passes"])
    make_distributed(
        inner,
        mixin,
        GradientReducer(optimizer_name=type(inner).__name__, **arguments),
        name or f"smdistributed.dataparallel.{type(inner).__name__}",
    )
    return optimizer


def _inner_of_loss_scaling(optimizer: Any) -> Any:
    """What a LossScaleOptimizer wraps; any other object itself."""
    bases = {base.__name__ for base in type(optimizer).__mro__}
    if bases & {"LossScaleOptimizer", "BaseLossScaleOptimizer"}:
        return optimizer.inner_optimizer
    return optimizer


def _mixin(optimizer: Any, given: Any) -> type:
    """What makes this kind of optimizer a distributed one."""
    cls = type(optimizer)
    packages = {base.__module__.partition(".")[0] for base in cls.__mro__}
    if "keras" in packages and hasattr(cls, "stateless_apply"):
        from smdistributed.dataparallel.tensorflow.optimizers import keras3

        keras = sys.modules["keras"]
        if keras.backend.backend() != "tensorflow":
            raise SMDDPUnsupported(
                f"{_describe(given)} belongs to Keras on {keras.backend.backend()!r}; expected"
                " Keras on TensorFlow. Set KERAS_BACKEND=tensorflow, or leave it unset."
            )
        keras3.prepare_keras(keras)
        return keras3.Keras3Distributed
    if packages & {"keras", "tf_keras"}:
        from smdistributed.dataparallel.tensorflow.optimizers import tf_keras

        if hasattr(cls, "aggregate_gradients"):
            return tf_keras.TfKerasDistributed
        if hasattr(cls, "_aggregate_gradients"):
            return tf_keras.LegacyDistributed
    raise SMDDPConfigInvalid(
        f"DistributedOptimizer got {_describe(given)}; expected an optimizer object of Keras 3, of"
        " tf-keras or of tf.compat.v1.train. Make one first, such as"
        " tf.keras.optimizers.Adam(0.001), and pass that."
    )


def _describe(value: Any) -> str:
    if isinstance(value, str | int | float | None):
        return repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"
