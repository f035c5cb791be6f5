# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Losses with terms over `model.trainable_variables`, which lists other variables on each rank.

    loss = loss_of(labels, logits) + 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in variables])

All ranks must have one loss whose gradients they take together. So it is divided into terms: those
that need nothing but variables and constants are of this rank, and the rest is common. The gradient
of a variable is that of the common terms, and on its owner that of its own terms is added: together
that of the sum of all. Where a loss is more than a sum of such terms, the ranks find that they
differ.

Source: TensorFlow modelparallel specification, section 3.3.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.tracing import Trace

__all__ = ["Terms", "sum_of_gradients"]

_READS = frozenset(("ReadVariableOp", "ResourceGather", "ResourceGatherNd"))


class _Need(enum.Enum):
    """What a tensor depends on, beside constants."""

    OF_THE_MODEL = enum.auto()
    """A variable of the model."""
    OTHER_VARIABLE = enum.auto()
    """One that all ranks have."""
    MORE = enum.auto()
    """Arguments of the step, what the model makes of them, random numbers."""


class _Term(NamedTuple):
    """One of those that a loss is the sum of.

    Attributes:
        tensor: what is not divided further.
        finish: what the loss makes of it: multiplies it, say.
    """

    tensor: tf.Tensor
    finish: Callable[[tf.Tensor], tf.Tensor]


class Terms:
    """Of the losses of a step.

    Args:
        trace: of the step.
        losses: tensors of its graph.
        is_of_the_model: whether the model has the variable of a handle.
        ends: tensors of which no gradient is taken further: they are not divided.
    """

    def __init__(
        self,
        trace: Trace,
        losses: Sequence[tf.Tensor],
        is_of_the_model: Callable[[Any], bool],
        ends: Iterable[tf.Tensor] = (),
    ) -> None:
        self._losses = losses
        self._ends = {each.name for each in ends}
        self._arguments = {each.op.name for each in trace.arguments}
        self._is_of_the_model = is_of_the_model
        self._externals = {
            internal.op.name: external for external, internal in trace.graph.captures
        }

    def common(self, loss: tf.Tensor) -> tf.Tensor:
        """The sum of a loss's terms that are the same on all ranks; constants are left out."""
        found = []
        for term in self._divided(loss, lambda whole: whole):
            needs = self._needs(term.tensor)
            if needs and not _is_own(needs):
                found.append(term.finish(term.tensor))
        if not found:
            return tf.zeros(loss.shape, loss.dtype)
        return found[0] if len(found) == 1 else tf.add_n(found)

    def own(self) -> list[tf.Tensor]:
        """All terms over variables of the model alone, which are this rank's; but constants."""
        return [
            term.finish(term.tensor)
            for loss in self._losses
            for term in self._divided(loss, lambda whole: whole)
            if _is_own(self._needs(term.tensor)) and not self._is_end(term.tensor)
        ]

    def is_shared(self, source: Any) -> bool:
        """Whether it is a variable, or its handle, that is not the model's: all ranks have it."""
        handle = source.handle if isinstance(source, tf.Variable) else source
        if handle.dtype != tf.resource:
            return False
        if not isinstance(handle, tf.__internal__.EagerTensor):
            handle = self._externals.get(handle.op.name)
        return handle is not None and not self._is_of_the_model(handle)

    def _divided(
        self, tensor: tf.Tensor, finish: Callable[[tf.Tensor], tf.Tensor]
    ) -> Iterator[_Term]:
        """The terms of a tensor, of its shape: what is spread over others would count for each."""
        kind, inputs = tensor.op.type, list(tensor.op.inputs)
        fits = [_are_of_one_shape(each, tensor) for each in inputs]
        if self._is_end(tensor):
            yield _Term(tensor, finish)
        elif kind in ("Add", "AddV2", "AddN", "Identity") and all(fits):
            for each in inputs:
                yield from self._divided(each, finish)
        elif kind == "Sub" and all(fits):
            yield from self._divided(inputs[0], finish)
            yield from self._divided(inputs[1], lambda part: finish(-part))
        elif kind == "Neg":
            yield from self._divided(inputs[0], lambda part: finish(-part))
        elif kind == "RealDiv" and fits[0] and self._is_scaled(inputs[0], inputs[1]):
            yield from self._divided(inputs[0], lambda part: finish(part / inputs[1]))
        elif kind == "Mul" and fits[0] and self._is_scaled(inputs[0], inputs[1]):
            yield from self._divided(inputs[0], lambda part: finish(part * inputs[1]))
        elif kind == "Mul" and fits[1] and self._is_scaled(inputs[1], inputs[0]):
            yield from self._divided(inputs[1], lambda part: finish(inputs[0] * part))
        else:
            yield _Term(tensor, finish)

    def _is_end(self, tensor: tf.Tensor) -> bool:
        """Whether no gradient is taken through it."""
        return tensor.op.type == "StopGradient" or tensor.name in self._ends

    def _is_scaled(self, part: tf.Tensor, scale: tf.Tensor) -> bool:
        """Whether a product is a part of the loss times a scale, on whichever rank."""
        return self._is_number(scale) and not self._is_number(part)

    def _is_number(self, tensor: tf.Tensor) -> bool:
        """Whether it is a constant, or as it is a variable of all ranks: the scale of a loss."""
        op = tensor.op
        while op.type in ("Identity", "Cast"):
            op = op.inputs[0].op
        needs = self._needs(tensor)
        return not needs or (op.type == "ReadVariableOp" and needs == {_Need.OTHER_VARIABLE})

    def _needs(self, tensor: tf.Tensor) -> set[_Need]:
        found: set[_Need] = set()
        seen: set[str] = set()
        stack = [tensor.op]
        while stack:
            op = stack.pop()
            if op.name not in seen:
                seen.add(op.name)
                found |= self._needs_of(op)
                stack.extend(each.op for each in op.inputs)
        return found

    def _needs_of(self, op: Any) -> set[_Need]:
        """Of an operation by itself."""
        if op.name in self._externals:
            external = self._externals[op.name]
            if external.dtype != tf.resource:
                return set()
            return {_Need.OF_THE_MODEL if self._is_of_the_model(external) else _Need.OTHER_VARIABLE}
        if op.name in self._arguments or (op.op_def.is_stateful and op.type not in _READS):
            return {_Need.MORE}
        return set()


def sum_of_gradients(one: Any, other: Any) -> Any:
    """Of two gradients of one variable, of any form; None counts nothing."""
    if one is None or other is None:
        return other if one is None else one
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def _is_own(needs: set[_Need]) -> bool:
    return _Need.OF_THE_MODEL in needs and _Need.MORE not in needs


def _are_of_one_shape(one: tf.Tensor, other: tf.Tensor) -> bool:
    return bool(one.shape.is_fully_defined() and one.shape == other.shape)
