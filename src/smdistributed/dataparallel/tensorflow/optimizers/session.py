# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of TensorFlow 1 that reduce gradients as they compute them.

`compute_gradients` is the one door: `minimize` calls it, and scripts that clip call it themselves
and hand the result to `apply_gradients`.

In a graph of TensorFlow 1 the reductions of one call are chained, bucket after bucket. What else
communicates in the same `session.run` must be chained by whoever builds it, since TensorFlow runs
what is independent in any order.

Source: dataparallel specification, section 7.7.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.compression import Compressor
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.gradient_reduction import reduce_gradients
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.optimizers.accumulation import dense

__all__ = ["distributed"]


@dataclasses.dataclass(frozen=True)
class _Options:
    name: str
    op: Any
    compression: Compressor
    sparse_as_dense: bool
    bucket_cap_bytes: int
    group: Group | None
    passes: int
    is_average_of_passes: bool


class _SessionDistributed:
    """What a distributed optimizer of TensorFlow 1 does in another way."""

    _smddp_options: _Options
    _smddp_is_last: Any = None  # with several passes: a tensor, whether this is the last one

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As the wrapped optimizer, with gradients reduced over all ranks."""
        parent: Any = super()
        pairs = parent.compute_gradients(*args, **kwargs)
        options = self._smddp_options
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if options.passes > 1:
            gradients, self._smddp_is_last = _summed_and_reduced(gradients, variables, options)
        else:
            gradients = _reduced(gradients, variables, options)
        return list(zip(gradients, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        """As the wrapped optimizer; with several passes, in the last one."""
        parent: Any = super()
        pairs = list(grads_and_vars)
        if self._smddp_options.passes == 1:
            return parent.apply_gradients(pairs, global_step=global_step, name=name)
        if self._smddp_is_last is None:
            raise SMDDPConfigInvalid(
                "apply_gradients() of an optimizer with backward_passes_per_step was called before"
                " compute_gradients(), which adds up and reduces; expected it afterwards. Call"
                " compute_gradients(), or minimize()."
            )
        applied = tf.cond(
            self._smddp_is_last,
            lambda: _true_after(parent.apply_gradients(pairs, global_step=global_step, name=name)),
            lambda: tf.constant(False),
        )
        return tf.group(applied)

    def get_name(self) -> str:
        """The name of the operations that apply gradients."""
        # Not `_name`: the optimizer's variables are called by that, in checkpoints too.
        return self._smddp_options.name


def _reduced(gradients: list[Any], variables: list[Any], options: _Options) -> list[Any]:
    return reduce_gradients(
        gradients,
        variables=variables,
        op=options.op,
        compression=options.compression,
        sparse_as_dense=options.sparse_as_dense,
        bucket_cap_bytes=options.bucket_cap_bytes,
        group=options.group,
    )


def _summed_and_reduced(
    gradients: list[Any], variables: list[Any], options: _Options
) -> tuple[list[Any], Any]:
    """Sums over several passes, reduced in the last one and zeros before; whether this is it.

    The sums are local variables: initialised with `tf.compat.v1.local_variables_initializer()`, as
    monitored sessions do, and not saved.
    """
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        raise SMDDPUnsupported(
            "backward_passes_per_step of a tf.compat.v1 optimizer works in graphs of TensorFlow 1"
            " alone; expected one. Use an optimizer of Keras, or"
            " tf.compat.v1.disable_eager_execution()."
        )
    present = [index for index, gradient in enumerate(gradients) if gradient is not None]
    given = [dense(gradients[index], variables[index]) for index in present]
    count = _local_variable(tf.zeros([], tf.int64))
    sums = [
        _local_variable(tf.zeros(variables[index].shape, each.dtype))
        for index, each in zip(present, given, strict=True)
    ]
    added = [kept.assign_add(each) for kept, each in zip(sums, given, strict=True)]
    with tf.control_dependencies(added):
        counted = count.assign_add(1)
    with tf.control_dependencies([counted]):
        is_last = tf.equal(count.read_value() % options.passes, 0)

    def reduced() -> list[Any]:
        divisor = options.passes if options.is_average_of_passes else 1
        totals = [kept.read_value() / divisor for kept in sums]
        with tf.control_dependencies(totals):
            cleared = [kept.assign(tf.zeros_like(kept)) for kept in sums]
        with tf.control_dependencies(cleared):
            totals = [tf.identity(total) for total in totals]
        return _reduced(totals, [variables[index] for index in present], options)

    with tf.control_dependencies([is_last]):
        results = tf.cond(is_last, reduced, lambda: [tf.zeros_like(each) for each in given])
    found: list[Any] = [None] * len(gradients)
    for index, result in zip(present, results, strict=True):
        found[index] = result
    return found, is_last


def _local_variable(initial_value: Any) -> Any:
    return tf.compat.v1.Variable(
        initial_value,
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        use_resource=True,
    )


def _true_after(operation: Any) -> Any:
    with tf.control_dependencies([operation]):
        return tf.constant(True)


def distributed(
    optimizer: Any,
    *,
    name: str | None,
    use_locking: bool,
    op: Any,
    compression: Compressor,
    sparse_as_dense: bool,
    bucket_cap_bytes: int,
    group: Group | None,
    passes: int,
    is_average_of_passes: bool,
) -> Any:
    """Turns a `tf.compat.v1.train.Optimizer` into one that reduces its gradients.

    Args:
        optimizer: changed in place; stays an instance of its class.
        name: of its operations; default: `smdistributed.dataparallel` and the name of its type.
        use_locking: True: variables are locked while they are updated; False: as `optimizer` says.
        op, compression, sparse_as_dense, bucket_cap_bytes, group: as for `reduce_gradients`.
        passes, is_average_of_passes: add up the gradients of so many batches before; divide these
            sums by their number.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is one already.
    """
    wrapped = type(optimizer)
    if issubclass(wrapped, _SessionDistributed):
        raise SMDDPConfigInvalid(
            f"{wrapped.__name__} is a DistributedOptimizer already; expected one that is not. Wrap"
            " each optimizer once."
        )
    options = _Options(
        name=name or f"smdistributed.dataparallel.{wrapped.__name__}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        bucket_cap_bytes=bucket_cap_bytes,
        group=group,
        passes=passes,
        is_average_of_passes=is_average_of_passes,
    )
    if use_locking:
        optimizer._use_locking = True
    optimizer.__class__ = type(
        wrapped.__name__,
        (_SessionDistributed, wrapped),
        {
            "__module__": wrapped.__module__,
            "__qualname__": wrapped.__qualname__,
            "__doc__": wrapped.__doc__,
            "_smddp_options": options,
        },
    )
    return optimizer
