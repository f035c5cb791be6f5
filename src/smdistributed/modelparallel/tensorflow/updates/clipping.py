# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The norm of all gradients of a model, each of which is on the rank that has its variable.

Every rank adds up the squares of its own gradients, and these sums, one number of 8 bytes for each
rank, are added up over the pipeline. So the norm has the same bits on all ranks, in every replica
whose gradients are equal.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.modelparallel.tensorflow.job.communication import sum_over_pipeline
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.remedies import hooks

__all__ = ["clip_by_global_norm", "clipped", "global_norm", "scale_for"]


@not_converted
def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Any]:
    """`tf.clip_by_global_norm` for gradients whose others are on other ranks of the pipeline.

        gradients = [g.accumulate() for g in gradients]
        gradients, norm = smp.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    Outside of steps, eagerly or in a `tf.function`. Every rank of the pipeline calls it, also one
    that has no variables and passes an empty list. After `hvd.allreduce`, if there are replicas.
    The gradient of a variable that is not the model's, which every rank has, counts once for each.

    Args:
        t_list: gradients of this rank's variables, of any shapes and of floating dtypes: tensors,
            `tf.IndexedSlices`, whose values count as they are, also where indices repeat, or None.
        clip_norm: the greatest norm, a positive number or a tensor without dimensions.
        use_norm: the norm, if it is known; then nobody is asked.
        name: of the operations.

    Returns:
        The gradients, times `clip_norm / max(clip_norm, norm)`, None for None; and the norm over
        all ranks, in float32, or in float64 if a gradient of this rank is of that. If it is not
        finite, all gradients of all ranks are NaN.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        RuntimeError: in a step, where every microbatch would have a norm of its own.
        TypeError: `t_list` is no list.
        SMDDPPeerLost, SMDDPTimeoutError: a rank of the pipeline has gone, or did not call it.

    Source: TensorFlow modelparallel specification, section 3.4: our choice.
    """
    caller = "smp.clip_by_global_norm()"
    state.require(caller)
    if hooks.is_tracing():
        raise RuntimeError(
            f"{caller} was called in a step, where every microbatch would be clipped by itself;"
            " expected it outside. Return the gradients from the step, and clip what .accumulate()"
            " of each gives."
        )
    if isinstance(t_list, str) or not isinstance(t_list, Sequence):
        raise TypeError(
            f"{caller} got {type(t_list).__name__}; expected a list of gradients. Write"
            " [g.accumulate() for g in gradients]."
        )
    with tf.name_scope(name or "smp_clip_by_global_norm"):
        gradients = [_as_gradient(each) for each in t_list]
        if use_norm is None:
            norm = global_norm(gradients, caller)
        else:
            norm = tf.cast(use_norm, _dtype_of_norm(gradients))
        return clipped(gradients, scale_for(clip_norm, norm)), norm


def global_norm(
    gradients: Sequence[Any], caller: str, counts: Sequence[bool] | None = None
) -> tf.Tensor:
    """The norm of the gradients of all ranks of the pipeline, all of which call this.

    Args:
        gradients: of this rank: tensors, `IndexedSlices` or None.
        caller: who asks, the same on all ranks; for messages.
        counts: for each gradient, whether this rank counts it; None: all.
    """
    counted = [True] * len(gradients) if counts is None else counts
    halves = [
        tf.cast(tf.nn.l2_loss(_at_least_float32(_values(each))), tf.float64)
        for each, counts_here in zip(gradients, counted, strict=True)
        if each is not None and counts_here
    ]
    mine = tf.add_n(halves) if halves else tf.zeros([], tf.float64)
    total = sum_over_pipeline(mine, caller)
    return tf.cast(tf.sqrt(2 * total), _dtype_of_norm(gradients))


def scale_for(clip_norm: Any, norm: tf.Tensor) -> tf.Tensor:
    """What makes a norm at most `clip_norm`; NaN if the norm is not finite."""
    most = tf.cast(clip_norm, norm.dtype)
    scale = most * tf.minimum(1 / norm, 1 / most)
    return tf.where(tf.math.is_finite(norm), scale, tf.constant(float("nan"), norm.dtype))


def clipped(gradients: Sequence[Any], scale: tf.Tensor) -> list[Any]:
    """Gradients times a scale, each in its own dtype and form."""
    return [None if each is None else _scaled(each, scale) for each in gradients]


def _as_gradient(value: Any) -> Any:
    if value is None or isinstance(value, tf.IndexedSlices):
        return value
    return tf.convert_to_tensor(hooks.raw(value))


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _at_least_float32(values: Any) -> Any:
    """Squares of 16 bits overflow at once."""
    return tf.cast(values, tf.float32) if values.dtype.size < tf.float32.size else values


def _dtype_of_norm(gradients: Sequence[Any]) -> tf.DType:
    dtypes = {_values(each).dtype for each in gradients if each is not None}
    return tf.float64 if tf.float64 in dtypes else tf.float32


def _scaled(gradient: Any, scale: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = _scaled(gradient.values, scale)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    wide = tf.cast(gradient, scale.dtype) * scale
    return tf.cast(wide, gradient.dtype)
