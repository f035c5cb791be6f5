# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`DistributedGradientTape`: a tape whose gradients are averaged over all ranks.

Source: dataparallel specification, section 7.6.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.compression import Compression, Compressor, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.gradient_reduction import (
    reduce_gradients,
    require_no_devices,
)
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.reduce_op import GRADIENT_OPS, ReduceOp, resolve_op

__all__ = ["DistributedGradientTape"]


@dataclasses.dataclass(frozen=True)
class _Options:
    op: Any
    compression: Compressor
    sparse_as_dense: bool
    group: Group | None


@not_converted
def DistributedGradientTape(  # noqa: N802 - the documented name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = True,
    op: Any = ReduceOp.AVERAGE,
    *,
    group: Group | None = None,
) -> Any:
    """Wraps a tape: `gradient()` then returns the gradients averaged over all ranks.

        with tf.GradientTape() as tape:
            loss = loss_of(model(images), labels)
        tape = DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    All ranks call `gradient()` for the same sources; it blocks eagerly, and is a part of the graph
    in a `tf.function`. Everything else is the wrapped tape's, whose records the two share, and
    which goes on to give the gradients of this rank alone. `jacobian()` and `batch_jacobian()` are
    not averaged. To wrap a tape twice changes its options and averages once.

    Args:
        gradtape: a `tf.GradientTape`, or of a class derived from it; persistent or not.
        device_dense, device_sparse: not supported; leave them empty.
        compression: `Compression.none`, `Compression.fp16`, or a class like them.
        sparse_as_dense: make gradients that are `tf.IndexedSlices` (of embeddings) dense; False:
            gather their rows from all ranks.
        op: `ReduceOp.AVERAGE`, which None stands for, or `ReduceOp.SUM`.
        group: of `new_group`, whose ranks' gradients are averaged; None: all ranks.

    Returns:
        A tape, of a class derived from that of `gradtape`.

    Raises:
        SMDDPUnsupported: `device_dense` or `device_sparse` is set.
        SMDDPConfigInvalid: (a ValueError) MIN or MAX, no such compression, or no tape.

    Source: specification, section 7.6.
    """
    require_no_devices(device_dense, device_sparse)
    if not isinstance(gradtape, tf.GradientTape):
        raise SMDDPConfigInvalid(
            f"DistributedGradientTape got a {type(gradtape).__name__}; expected a tf.GradientTape."
            " Pass the tape under which the loss was computed."
        )
    options = _Options(
        op=resolve_op(op, "DistributedGradientTape", GRADIENT_OPS),
        compression=resolve_compression(compression),
        sparse_as_dense=bool(sparse_as_dense),
        group=group,
    )
    if isinstance(gradtape, _Averaging):
        gradtape = gradtape._twin(type(gradtape)._smddp_base)
    kind: Any = type(gradtape)
    distributed = object.__new__(_averaging_class(kind))
    # The same dictionary, not a copy: a tape keeps all its state there, and whichever of the two
    # is used, entered or left, the other one has to know.
    distributed.__dict__ = gradtape.__dict__
    distributed._smddp_options = options
    return distributed


class _Averaging:
    """What a distributed tape does differently; stands before the tape's own class."""

    _smddp_base: type
    _smddp_options: _Options

    @not_converted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As `tf.GradientTape.gradient`, averaged over all ranks; blocks for the other ranks."""
        local = super().gradient(  # type: ignore[misc]
            target, sources, output_gradients, unconnected_gradients
        )
        reduced = reduce_gradients(
            tf.nest.flatten(local),
            variables=tf.nest.flatten(sources),
            op=self._smddp_options.op,
            compression=self._smddp_options.compression,
            sparse_as_dense=self._smddp_options.sparse_as_dense,
            group=self._smddp_options.group,
        )
        return tf.nest.pack_sequence_as(local, reduced)

    @not_converted
    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As `tf.GradientTape.jacobian`: of this rank alone."""
        # TensorFlow's calls `self.gradient` on its way.
        return self._twin(self._smddp_base).jacobian(*args, **kwargs)

    @not_converted
    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As `tf.GradientTape.batch_jacobian`: of this rank alone."""
        return self._twin(self._smddp_base).batch_jacobian(*args, **kwargs)

    def _twin(self, kind: type) -> Any:
        """The tape that was wrapped, or one that cannot be told from it.

        It is not kept, since that would make a cycle: with the memory of a step in it.
        """
        twin: Any = object.__new__(kind)
        twin.__dict__ = self.__dict__
        return twin


@functools.cache
def _averaging_class(base: Any) -> Any:
    return type(
        "DistributedGradientTape",
        (_Averaging, base),
        {"_smddp_base": base, "__doc__": DistributedGradientTape.__doc__},
    )
