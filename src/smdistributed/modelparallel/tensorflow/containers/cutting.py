# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which types of TensorFlow are what to a step function, and how a tensor is cut.

| type | treatment |
| --- | --- |
| `tf.Tensor`, eager or symbolic; what has `__array__` (NumPy's arrays and numbers) | cut |
| models, layers, metrics, losses; dtypes, shapes, specs | whole |
| optimizer; variable | whole, with a warning |
| `tf.data.Dataset`, its iterators, Keras' datasets | refused: pass the batches |
| `RaggedTensor`, `SparseTensor`, `IndexedSlices`, other composites | refused, unless whole |
| `StepOutput` | refused |

NumPy's arrays become tensors, as they do in `tf.function`. A variable is not a batch (our choice).

Source: TensorFlow modelparallel specification, section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.modelparallel.containers.splitting import Cutting, Treatment
from smdistributed.modelparallel.tensorflow.containers import flatten
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput

__all__ = ["CUTTING", "is_keras", "is_variable", "require_divisible"]

_KERASES = ("keras", "tf_keras")
_WHOLE = (
    tf.__internal__.tracking.AutoTrackable,
    tf.DType,
    tf.TensorShape,
    tf.TypeSpec,
    np.dtype,
    np.str_,
    np.bytes_,
)
_LOADERS = (tf.data.Dataset, tf.data.Iterator, tf.distribute.DistributedDataset)


class TensorFlowCutting(Cutting):
    """TensorFlow's part of the rules."""

    tensor = tf.__internal__.EagerTensor
    complete_batches = "Dataset.batch with drop_remainder=True leaves a smaller last one out"

    def treat(self, cls: type) -> Treatment | None:
        """What becomes of instances of a class that TensorFlow knows."""
        if issubclass(cls, StepOutput):
            return Treatment.REFUSED
        if is_variable(cls):
            return Treatment.OTHER
        if issubclass(cls, tf.Tensor):
            return Treatment.CUT
        if issubclass(cls, _LOADERS) or is_keras(cls, "PyDataset", "Sequence"):
            return Treatment.LOADER
        if issubclass(cls, tf.__internal__.CompositeTensor):
            return Treatment.REFUSED
        if is_keras(cls, "Optimizer", "OptimizerV2"):
            return Treatment.OPTIMIZER
        if issubclass(cls, _WHOLE) or is_keras(cls, "Metric", "Loss", "Layer"):
            return Treatment.WHOLE
        return Treatment.CUT if hasattr(cls, "__array__") else None

    def dims(self, tensor: Any) -> int:
        """How many dimensions a tensor of known rank, or an array, has."""
        return len(tensor.shape)

    def size(self, tensor: Any, axis: int) -> Any:
        """The size along an axis; None if only the run of the graph knows it."""
        return tensor.shape[axis]

    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        """The static shape."""
        return tuple(tensor.shape)

    def cut(self, tensor: Any, count: int, axis: int) -> Iterable[tf.Tensor]:
        """Even pieces; the caller has seen to it that there are."""
        pieces: list[tf.Tensor] = tf.split(tensor, count, axis)
        return pieces

    def why_refused(self, value: Any) -> str:
        """What it is, and what to do instead."""
        if isinstance(value, StepOutput):
            return (
                "a StepOutput, which has a tensor for each microbatch; expected one tensor. Pass"
                " what its concat() or reduce_mean() gives."
            )
        return (
            f"a {type(value).__name__}, which is not cut into microbatches; expected a tensor. Pass"
            " a dense one (to_tensor(), tf.sparse.to_dense), or name the argument in"
            " non_split_inputs."
        )

    def holds_something_to_cut(self, value: Any) -> bool:
        """Whether there is a tensor in a value, or something that the rules refuse.

        Here tensors without dimensions count, and those in attributes: what a graph is to see must
        be one of its inputs, as it would be a constant otherwise.
        """
        leaves, structure = flatten(
            value, lambda node: self.treatment_of(type(node)) is not Treatment.OPEN
        )
        for index, leaf in enumerate(leaves):
            treatment = self.treatment_of(type(leaf))
            if treatment is Treatment.CUT:
                return True
            is_item = index not in structure.attribute_leaves
            if is_item and treatment in (Treatment.SLICE, Treatment.REFUSED):
                return True
        return False


CUTTING = TensorFlowCutting()


def is_variable(cls: type) -> bool:
    """Whether instances are variables, of TensorFlow or of a Keras."""
    return issubclass(cls, tf.Variable) or is_keras(cls, "Variable", "KerasVariable")


def is_keras(cls: type, *names: str) -> bool:
    """Whether a class has one of these names in a Keras, or a base that has.

    Asked by name: the other Keras may not be installed, and to import either takes a second.
    """
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] in _KERASES
        for base in cls.__mro__
    )


def require_divisible(tensor: tf.Tensor, axis: int, count: int, before: str, after: str) -> Any:
    """The same symbolic tensor, behind a check that a size that is not known yet divides.

    Args:
        tensor: of known rank.
        axis: along which it will be cut.
        count: the number of pieces.
        before, after: what the error says around the size.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, and the size does not divide.
    """
    size = tf.shape(tensor)[axis]
    message = tf.strings.join([before, tf.strings.as_string(size), after])
    check = tf.debugging.Assert(tf.equal(size % count, 0), [message], summarize=1)
    with tf.control_dependencies([check]):
        same = tf.identity(tensor)
    same.set_shape(tensor.shape)
    return same
