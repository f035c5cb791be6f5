# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.StepOutput`: one tensor for each microbatch, eager or symbolic.

Source: TensorFlow modelparallel specification, sections 3.4 (variables of other ranks) and 5.3.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.containers.gathering import MicrobatchOutputs
from smdistributed.modelparallel.tensorflow.containers.sums import add_up

__all__ = ["StepOutput"]

# The integers in which a sum of a few microbatches may overflow.
_SMALL = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16)
_HALF = (tf.float16, tf.bfloat16)
_METHODS = "variable", "add_n", "accumulate_n"


class StepOutput(MicrobatchOutputs[Any]):
    """One tensor, or one `tf.IndexedSlices`, for each microbatch, in the order of the batch.

    `len()`, indexing and iteration give them (our extension). To TensorFlow and Keras it is no
    tensor: pass what one of the methods gives.

    Of gradients with respect to a variable that another rank owns, `is_local` is False: their
    outputs are zeros, and `reduce_mean`, `reduce_sum` and `accumulate` give None.

    Attributes:
        outputs: the list. They need the same shape for `reduce_mean`, `reduce_sum`, `accumulate`
            and `stack`, and the same but for dimension 0 for `concat`.
        is_local: whether this rank has the values.

    Raises:
        ValueError: there are no outputs.
        TypeError: one is not a tensor.

    Source: TensorFlow modelparallel specification, section 5.3.
    """

    __slots__ = ()

    _tensor_class = tf.__internal__.EagerTensor
    _methods = "reduce_mean(), reduce_sum(), accumulate(), concat(), stack()"

    is_local = True

    @staticmethod
    def elsewhere(spec: tf.TensorSpec, microbatches: int) -> StepOutput:
        """Of gradients with respect to a variable that another rank owns: zeros of a spec."""
        return _Elsewhere(spec, microbatches)

    @staticmethod
    def summed(
        outputs: Sequence[Any],
        total: Any,
        uses_total: Callable[[], None],
        uses_outputs: Callable[[], None],
    ) -> StepOutput:
        """Of a graph in which the sum comes ready.

        Args:
            outputs: tensors of a floating-point dtype and one shape.
            total: their sum, in their order.
            uses_total, uses_outputs: called where it is, or they are, used.
        """
        return _Summed(outputs, total, uses_total, uses_outputs)

    def reduce_mean(self) -> Any:
        """The mean over microbatches, element by element; of the shape of one output.

        Integers and booleans are averaged in float32, other dtypes stay. `IndexedSlices` become
        one, of all indices, the values divided by the number of microbatches.

        Raises:
            ValueError: static shapes differ.
            TypeError: the outputs are strings.
            tf.errors.InvalidArgumentError: shapes differ.
        """
        return self._mean("reduce_mean")

    def reduce_sum(self) -> Any:
        """The sum over microbatches, element by element; of the shape of one output.

        dtypes stay, except that booleans and integers of 8 and 16 bits are summed in int64 (our
        choice: they would overflow). `IndexedSlices` become one, of all indices.

        Raises: as `reduce_mean`.
        """
        if self._are_slices():
            return self._all_slices(divisor=None)
        outputs = self._numbers("reduce_sum")
        dtype = outputs[0].dtype
        if dtype in _SMALL:
            return add_up([tf.cast(each, tf.int64) for each in outputs])
        if dtype in _HALF:
            return tf.cast(add_up([tf.cast(each, tf.float32) for each in outputs]), dtype)
        return add_up(outputs)

    def accumulate(self, method: str = "variable", var: Any = None) -> Any:
        """The same as `reduce_mean`, added up in a way that the caller chooses.

        Args:
            method: "variable": one after the other. "add_n", "accumulate_n": TensorFlow's functions
                of these names.
            var: with "variable", a variable of TensorFlow or Keras of the shape of one output. It
                is overwritten with the mean, in its own dtype. The other methods ignore it.

        Returns: the mean, the value of `var` if that is given.

        Raises:
            ValueError: there is no such method, or static shapes differ.
            TypeError: the outputs are strings, or `var` is of integers.
        """
        if method not in _METHODS:
            raise ValueError(
                f"accumulate(method={method!r}) of a StepOutput; expected one of"
                f" {', '.join(map(repr, _METHODS))}. Correct the method."
            )
        if method == "add_n":
            return self._mean("accumulate", tf.add_n)
        if method == "accumulate_n":
            return self._mean("accumulate", tf.math.accumulate_n)
        mean = self._mean("accumulate")
        if var is None or mean is None:
            return mean
        mean, dtype = tf.convert_to_tensor(mean), tf.as_dtype(var.dtype)
        if not (dtype.is_floating or dtype.is_complex):
            raise TypeError(
                f"accumulate(var=...) with a variable of {dtype.name}, which holds no mean"
                f" ({mean.dtype.name}); expected one of a floating-point dtype. Pass another"
                " variable, or none."
            )
        mean = tf.cast(mean, dtype)
        var.assign(mean)
        return tf.convert_to_tensor(var)

    def concat(self) -> Any:
        """The outputs one behind the other along dimension 0; those without dimensions stacked.

        `IndexedSlices` are made dense, with a warning.

        Raises:
            ValueError: static shapes differ in another dimension.
            tf.errors.InvalidArgumentError: shapes do.
        """
        outputs = self._dense("concat")
        if all(self._is_scalar(output) for output in outputs):
            return self._stacked(outputs, "concat")
        ranks = {each.shape.rank for each in outputs} - {None}
        first = outputs[0].shape
        if len(ranks) > 1 or not all(
            each.shape[1:].is_compatible_with(first[1:]) for each in outputs
        ):
            raise self._mismatch("concat", "shapes that differ in dimension 0 alone", "stack them")
        return tf.concat(outputs, axis=0)

    def merge(self) -> Any:
        """The same as `concat`."""
        return self.concat()

    def stack(self) -> Any:
        """The outputs along a new dimension 0, of the size of the number of microbatches.

        `IndexedSlices` are made dense, with a warning.

        Raises: as `concat`.
        """
        return self._stacked(self._dense("stack"), "stack")

    # ---- not a tensor ----------------------------------------------------------------------------

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> NoReturn:
        """Asked by TensorFlow and Keras for one tensor.

        Raises:
            TypeError: always; says which methods give one.
        """
        raise TypeError(self._no_tensor())

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Asked by NumPy for one array.

        Raises:
            TypeError: always; says which methods give a tensor.
        """
        raise TypeError(self._no_tensor())

    def _no_tensor(self) -> str:
        return (
            f"A StepOutput was used as a tensor ({self!r}), and it has one for each of"
            f" {len(self)} microbatches; expected one tensor. Call one of those methods, or take"
            " one by its index."
        )

    # ---- one by one ------------------------------------------------------------------------------

    @staticmethod
    def _is_tensor(value: Any) -> bool:
        return isinstance(value, (tf.Tensor, tf.IndexedSlices))

    @staticmethod
    def _describe(output: Any) -> str:
        what = "slices" if isinstance(output, tf.IndexedSlices) else "tensor"
        return f"{what} of shape {output.shape}, {output.dtype.name}"

    @staticmethod
    def _is_scalar(output: Any) -> bool:
        is_scalar: bool = output.shape.rank == 0
        return is_scalar

    def __reduce__(self) -> tuple[Any, ...]:
        return StepOutput, (self.outputs,)

    def __repr__(self) -> str:
        # Some layers show what they were given in an error of theirs, and ask for no tensor.
        return f"{super().__repr__()[:-1]}: {self._methods} give one tensor)"

    # ---- together --------------------------------------------------------------------------------

    def _mean(self, operation: str, add: Callable[[Sequence[Any]], Any] | None = None) -> Any:
        """By the function, or in the order of the microbatches."""
        count = len(self.outputs)
        if self._are_slices():
            return self._all_slices(divisor=count)
        outputs = self._numbers(operation)
        dtype = outputs[0].dtype
        if dtype in _HALF:  # which would overflow on the way
            outputs = [tf.cast(each, tf.float32) for each in outputs]
            return tf.cast(add_up(outputs, count) if add is None else add(outputs) / count, dtype)
        if dtype.is_floating or dtype.is_complex:
            return add_up(outputs, count) if add is None else add(outputs) / tf.cast(count, dtype)
        # Summed as integers, which is exact; only the result is rounded.
        total = (add or add_up)([tf.cast(each, tf.int64) for each in outputs])
        return tf.cast(tf.cast(total, tf.float64) / count, tf.float32)

    def _are_slices(self) -> bool:
        return all(isinstance(output, tf.IndexedSlices) for output in self.outputs)

    def _all_slices(self, divisor: int | None) -> tf.IndexedSlices:
        values = [output.values for output in self.outputs]
        if divisor is not None:
            values = [each / tf.cast(divisor, each.dtype) for each in values]
        return tf.IndexedSlices(
            tf.concat(values, axis=0),
            tf.concat([output.indices for output in self.outputs], axis=0),
            self.outputs[0].dense_shape,
        )

    def _numbers(self, operation: str) -> list[tf.Tensor]:
        """The outputs as tensors of one shape, with which one can compute."""
        outputs = [tf.convert_to_tensor(output) for output in self.outputs]
        if outputs[0].dtype == tf.string:
            raise TypeError(
                f"{operation} of a StepOutput of strings; expected numbers. Use concat(), stack()"
                " or .outputs."
            )
        self._require_one_shape(outputs, operation)
        return outputs

    def _dense(self, operation: str) -> list[tf.Tensor]:
        if any(isinstance(output, tf.IndexedSlices) for output in self.outputs):
            get_logger().warning(
                f"{operation} of a StepOutput of IndexedSlices makes them dense: {self!r}. If the"
                " tensor is large, use reduce_mean(), reduce_sum() or accumulate(), which keep them"
                " sparse."
            )
        return [tf.convert_to_tensor(output) for output in self.outputs]

    def _stacked(self, outputs: list[tf.Tensor], operation: str) -> tf.Tensor:
        self._require_one_shape(outputs, operation)
        return tf.stack(outputs)

    def _require_one_shape(self, outputs: list[tf.Tensor], operation: str) -> None:
        first = outputs[0].shape
        if not all(each.shape.is_compatible_with(first) for each in outputs):
            raise self._mismatch(operation, "one shape", "concatenate them with concat()")

    def _mismatch(self, operation: str, expected: str, instead: str) -> ValueError:
        return ValueError(
            f"{operation} of a StepOutput whose microbatches differ ({self._listed()}); expected"
            f" {expected}. Return the same shape from every microbatch, {instead}, or use .outputs."
        )


class _Elsewhere(StepOutput):
    """Of gradients with respect to a variable that another rank owns; takes no memory."""

    __slots__ = ("_microbatches", "_spec")

    is_local = False

    def __init__(self, spec: tf.TensorSpec, microbatches: int) -> None:
        self._spec = spec
        self._microbatches = microbatches

    @property
    def outputs(self) -> list[Any]:  # type: ignore[override]
        """Zeros; made each time, as a tensor belongs to the graph in which it is made."""
        zeros = tf.zeros(self._spec.shape, self._spec.dtype)
        return [zeros] * self._microbatches

    def reduce_mean(self) -> None:
        """None: the owner of the variable has the mean."""

    def reduce_sum(self) -> None:
        """None: the owner of the variable has the sum."""

    def accumulate(self, method: str = "variable", var: Any = None) -> None:
        """None: the owner of the variable has the mean; `var` stays as it is."""
        if method not in _METHODS:
            super().accumulate(method)

    def __len__(self) -> builtins.int:
        return self._microbatches

    def __reduce__(self) -> tuple[Any, ...]:
        return _Elsewhere, (self._spec, self._microbatches)

    def __repr__(self) -> str:
        return f"StepOutput({self._microbatches} × {self._describe(self._spec)}, of another rank)"


class _Summed(StepOutput):
    """Where the step has added the outputs up, and keeps them only if they are used, too."""

    __slots__ = ("_each", "_total", "_uses_outputs", "_uses_total")

    def __init__(
        self,
        outputs: Sequence[Any],
        total: Any,
        uses_total: Callable[[], None],
        uses_outputs: Callable[[], None],
    ) -> None:
        self._each = list(outputs)
        self._total = total
        self._uses_total = uses_total
        self._uses_outputs = uses_outputs

    @property
    def outputs(self) -> list[Any]:  # type: ignore[override]
        """The tensor of each microbatch."""
        self._uses_outputs()
        return self._each

    def reduce_sum(self) -> Any:
        """As of `StepOutput`."""
        self._uses_total()
        return self._total

    def _mean(self, operation: str, add: Callable[[Sequence[Any]], Any] | None = None) -> Any:
        if add is not None:  # which has bits of its own
            return super()._mean(operation, add)
        return add_up([self.reduce_sum()], len(self))

    def __len__(self) -> builtins.int:
        return len(self._each)

    def __repr__(self) -> str:
        return repr(StepOutput(self._each))
