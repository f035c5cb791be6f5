# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the body of a step returns in its trace, and what the microbatches make of it.

    results = TracedResults(body(*args, **kwargs), "train_step")
    ...                                               # the program computes results.tensors
    results.gather([tensors of microbatch 0, tensors of microbatch 1, ...])

| the body returns | the caller gets |
| --- | --- |
| tensor, variable, number, text, array, `IndexedSlices` | a `StepOutput` |
| tensor of gradients of a variable of another rank | a `StepOutput` that is not local |
| None | None |
| list, tuple, dict, other containers | the same container around what the rules give |
| anything else, sets among it | refused, as `tf.function` does |

Attributes that a container has beside its items are those of the first microbatch (our choice).

Source: TensorFlow modelparallel specification, section 5.2.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.containers.gathering import gather
from smdistributed.modelparallel.tensorflow.containers import flatten
from smdistributed.modelparallel.tensorflow.containers.cutting import is_variable
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput

__all__ = ["TracedResults", "gather_outputs"]


class TracedResults:
    """The results of one microbatch, symbolic; made in the graph of the trace.

    Args:
        value: what the body returned.
        name: of the step function, for messages.
        is_elsewhere: says of a returned tensor that it stands for gradients with respect to a
            variable of another rank. It is not among `tensors`.

    Attributes:
        tensors: what a microbatch computes, in order; of `IndexedSlices` the values, the indices
            and the dense shape, if there is one.

    Raises:
        TypeError: the body returned something that is no result.
    """

    def __init__(
        self,
        value: Any,
        name: str,
        is_elsewhere: Callable[[tf.Tensor], bool] = lambda tensor: False,
    ) -> None:
        leaves, self._structure = flatten(value, _is_set)
        paths = self._structure.paths("")
        self.tensors: list[tf.Tensor] = []
        self._places: list[_Place] = []
        for index, leaf in enumerate(leaves):
            if index in self._structure.attribute_leaves and not _is_tensor(leaf):
                self._places.append(_Kept(leaf))
                continue
            where = f"The step function {name} returned{paths[index] and ' at ' + paths[index]}"
            self._places.append(self._place(_as_result(leaf, where), is_elsewhere))

    def without_tensors(self) -> TracedResults:
        """The same for `gather`, which lets go of the graph of the trace."""
        other = copy.copy(self)
        other.tensors = []
        return other

    def alone(self) -> list[bool]:
        """By tensor of `tensors`, whether it is a result by itself."""
        found: list[bool] = []
        for place in self._places:
            found += [isinstance(place, _Tensor)] * place.num_tensors
        return found

    def gather(
        self,
        rows: Sequence[Sequence[tf.Tensor]],
        output_of: Callable[[Sequence[Any]], StepOutput] = StepOutput,
    ) -> Any:
        """What the step function returns.

        Args:
            rows: by microbatch, its `tensors`; eager, or symbolic in another graph.
            output_of: makes a `StepOutput` of what the microbatches have for a leaf.
        """
        results = []
        for row in rows:
            waiting = iter(row)
            results.append(
                self._structure.unflatten([place.take(waiting) for place in self._places])
            )
        return gather_outputs(results, output_of)

    def _place(self, leaf: Any, is_elsewhere: Callable[[tf.Tensor], bool]) -> _Place:
        if leaf is None:
            return _Kept(None)
        if is_elsewhere(leaf):
            return _Kept(_Elsewhere(leaf))
        if isinstance(leaf, tf.IndexedSlices):
            parts = [leaf.values, leaf.indices]
            if leaf.dense_shape is not None:
                parts.append(leaf.dense_shape)
            self.tensors += parts
            return _Slices(len(parts))
        self.tensors.append(leaf)
        return _Tensor()


class _Place:
    """Where a result of a microbatch comes from.

    Attributes:
        num_tensors: of how many tensors it is made.
    """

    num_tensors = 0

    def take(self, tensors: Any) -> Any:
        """The result; takes what it is made of from an iterator."""
        raise NotImplementedError


class _Kept(_Place):
    """From the trace: the same for all microbatches."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def take(self, tensors: Any) -> Any:
        return self._value


class _Tensor(_Place):
    num_tensors = 1

    def take(self, tensors: Any) -> Any:
        return next(tensors)


class _Slices(_Place):
    def __init__(self, num_parts: int) -> None:
        self.num_tensors = num_parts

    def take(self, tensors: Any) -> Any:
        return tf.IndexedSlices(*[next(tensors) for _ in range(self.num_tensors)])


class _Elsewhere:
    """Stands for a result of another rank."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.spec = tf.TensorSpec(tensor.shape, tensor.dtype)


def gather_outputs(
    values: Sequence[Any], output_of: Callable[[Sequence[Any]], StepOutput] = StepOutput
) -> Any:
    """What the step function returns, from the results of each microbatch.

    Args:
        values: by microbatch; at least one. Leaves are tensors, `IndexedSlices` or None.
        output_of: as of `TracedResults.gather`.

    Raises:
        RuntimeError: containers differ between microbatches.
        ValueError: there are no values, or containers hold themselves.
    """

    def output(column: tuple[Any, ...]) -> StepOutput:
        if isinstance(column[0], _Elsewhere):
            return StepOutput.elsewhere(column[0].spec, len(column))
        return output_of(column)

    return gather(values, output)


def _as_result(leaf: Any, where: str) -> Any:
    """A tensor, `IndexedSlices` or None."""
    if leaf is None:
        return None
    if isinstance(leaf, tf.IndexedSlices):
        parts = (leaf.values, leaf.indices, leaf.dense_shape)
        found = [None if each is None else _of_this_graph(each, where) for each in parts]
        return leaf if all(map(operator.is_, found, parts)) else tf.IndexedSlices(*found)
    if isinstance(leaf, tf.Tensor):
        return _of_this_graph(leaf, where)
    if isinstance(leaf, StepOutput):
        raise TypeError(
            f"{where} a StepOutput; expected tensors of this microbatch. Return what the model"
            " gives, and call reduce_mean() on what the step returns."
        )
    if isinstance(leaf, tf.__internal__.CompositeTensor) and not is_variable(type(leaf)):
        raise TypeError(
            f"{where} a {type(leaf).__name__}, of which no StepOutput is made; expected tensors."
            " Return a dense one (to_tensor(), tf.sparse.to_dense), or its components."
        )
    try:
        if _is_set(leaf):
            raise TypeError("elements of a set have no order")
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where} a {type(leaf).__name__}, which cannot leave a graph ({error}); expected"
            " tensors, numbers, strings or None, in lists, tuples, dicts and other containers."
            " Return tensors."
        ) from error


def _of_this_graph(tensor: Any, where: str) -> Any:
    if not hasattr(tensor, "graph") or isinstance(tensor, tf.__internal__.EagerTensor):
        return tf.identity(tensor)
    if tensor.graph is not tf.compat.v1.get_default_graph():
        raise TypeError(
            f"{where} a tensor of another graph ({tensor.name}); expected one that this call of the"
            " function has made. What the function has kept of an earlier call, or has taken out of"
            " the body of a loop, a condition or a tf.function, has no value here: make it anew, or"
            " return it from there."
        )
    return tensor


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.IndexedSlices))


def _is_set(container: Any) -> bool:
    return isinstance(container, (set, frozenset))
