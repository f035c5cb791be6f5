# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a step function returns, with PyTorch: `StepOutput`s, and lists of other values.

`smdistributed.modelparallel.containers.gathering` has the rules.

Source: modelparallel specification, sections 3.4 and 4.3.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.containers.gathering import MicrobatchOutputs, gather
from smdistributed.modelparallel.torch.containers import map_leaves

__all__ = ["StepOutput", "detach", "gather_outputs"]


class StepOutput(MicrobatchOutputs[Tensor]):
    """One tensor for each microbatch, in the order of the batch.

    `len()`, indexing and iteration give the tensors (our extension).

    Attributes:
        outputs: the list of tensors. They need the same shape for `reduce_mean`, `reduce_sum` and
            `stack`, and the same but for dimension 0 for `concat`.
        weights: what each counts in `reduce_mean`, where a batch did not divide; they add up to 1.
            None: all the same.

    Raises:
        ValueError: there are no outputs.
        TypeError: one is not a tensor.

    Source: modelparallel specification, section 4.3.
    """

    __slots__ = ("weights",)

    _tensor_class = Tensor
    _methods = "reduce_mean(), reduce_sum(), concat(), stack()"

    weights: tuple[float, ...] | None

    def __init__(
        self, outputs: Sequence[Tensor], weights: Sequence[builtins.float] | None = None
    ) -> None:
        super().__init__(outputs)
        self.weights = None if weights is None else tuple(weights)

    @staticmethod
    def _is_tensor(value: Any) -> bool:
        return isinstance(value, Tensor)

    @staticmethod
    def _describe(output: Tensor) -> str:
        dtype = str(output.dtype).removeprefix("torch.")
        return f"tensor of shape {tuple(output.shape)}, {dtype}, {output.device}"

    @staticmethod
    def _is_scalar(output: Tensor) -> bool:
        return output.dim() == 0

    def reduce_mean(self) -> Tensor:
        """The mean over microbatches, element by element; of the shape of one output.

        Integers and booleans are averaged in float32, other dtypes stay. Microbatches of a batch
        that did not divide count by their sizes.

        Raises:
            RuntimeError: shapes or devices differ.
        """
        stacked = self._stacked("reduce_mean")
        if self.weights is not None:
            is_inexact = stacked.is_floating_point() or stacked.is_complex()
            dtype = stacked.dtype if is_inexact else torch.float32
            weights = torch.tensor(self.weights, dtype=dtype, device=stacked.device)
            mean: Tensor = torch.tensordot(weights, stacked.to(dtype), 1)
            return mean
        if stacked.is_floating_point() or stacked.is_complex():
            return stacked.mean(0)
        # Summed as integers, which is exact; only the result is rounded.
        return stacked.sum(0, dtype=torch.int64).to(torch.float32) / len(self.outputs)

    def reduce_sum(self) -> Tensor:
        """The sum over microbatches, element by element; of the shape of one output.

        As in `torch.sum`, integers and booleans are summed in int64, other dtypes stay.

        Raises:
            RuntimeError: shapes or devices differ.
        """
        return self._stacked("reduce_sum").sum(0)

    def concat(self) -> Tensor:
        """The outputs one behind the other along dimension 0; those without dimensions stacked.

        Raises:
            RuntimeError: shapes differ in another dimension, or devices differ.
        """
        if all(output.dim() == 0 for output in self.outputs):
            return self._stacked("concat")
        try:
            return torch.cat(self.outputs, dim=0)
        except RuntimeError as error:
            raise self._mismatch(
                "concat", "shapes that differ in dimension 0 alone", "stack them"
            ) from error

    def stack(self) -> Tensor:
        """The outputs along a new dimension 0, of the size of the number of microbatches.

        Raises:
            RuntimeError: shapes or devices differ.
        """
        return self._stacked("stack")

    def detach(self) -> StepOutput:
        """The outputs without their history."""
        return self._of([output.detach() for output in self.outputs])

    def to(self, *args: Any, **kwargs: Any) -> StepOutput:
        """`Tensor.to` of each output."""
        return self._of([output.to(*args, **kwargs) for output in self.outputs])

    def cpu(self) -> StepOutput:
        """The outputs in the memory of the CPU."""
        return self._of([output.cpu() for output in self.outputs])

    def float(self) -> StepOutput:
        """The outputs in float32."""
        return self._of([output.float() for output in self.outputs])

    def _of(self, outputs: list[Tensor]) -> StepOutput:
        return StepOutput(outputs, self.weights)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepOutput, (self.outputs, self.weights)

    def _stacked(self, operation: str) -> Tensor:
        try:
            return torch.stack(self.outputs)
        except RuntimeError as error:
            raise self._mismatch(
                operation, "one shape", "concatenate them with concat()"
            ) from error

    def _mismatch(self, operation: str, expected: str, instead: str) -> RuntimeError:
        return RuntimeError(
            f"{operation} of a StepOutput whose microbatches differ ({self._listed()}); expected"
            f" {expected}, on one device. Return the same shape from every microbatch, {instead},"
            " or use .outputs."
        )


def detach(value: Any) -> Any:
    """The same containers around leaves that have no history: tensors detached, others as they are.

    Raises: as `structures.flatten`.
    """
    return map_leaves(_detach_leaf, value)


def gather_outputs(values: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """What the step function returns, from what its body returned in each microbatch.

    Tensors are passed on as they are: `detach` the values before if they should not carry history.

    Args:
        values: by microbatch; at least one.
        weights: of the microbatches in a mean; None: all the same.

    Returns:
        The containers of the values around `StepOutput`s, lists and None, as the module says.

    Raises:
        RuntimeError: containers differ between microbatches.
        ValueError: there are no values, or containers hold themselves.
    """
    return gather(values, lambda column: _gather_leaf(column, weights))


def _gather_leaf(column: tuple[Any, ...], weights: Sequence[float] | None) -> Any:
    if all(isinstance(value, Tensor) for value in column):
        return StepOutput(column, weights)
    return list(column)


def _detach_leaf(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf
