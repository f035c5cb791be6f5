# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a step function returns: the results of its microbatches, gathered.

The body returned once for each microbatch. The caller gets the same containers once, and in the
place of each leaf

| the leaf is, in the microbatches | the caller gets |
| --- | --- |
| a tensor in all | a `StepOutput` |
| None in all | None |
| anything else | the plain list of the values, by microbatch |

Containers are those of `structures`, except sets, whose elements have no order in which those of
two microbatches would correspond: a set is a leaf. Attributes that a container has beside its items
are those of the first microbatch (our choice).

Source: modelparallel specification, sections 3.4 and 4.3.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.containers.structures import Structure, flatten, map_leaves

__all__ = ["StepOutput", "detach", "gather_outputs"]


class StepOutput:
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

    __slots__ = ("outputs", "weights")

    outputs: list[Tensor]
    weights: tuple[float, ...] | None

    def __init__(
        self, outputs: Sequence[Tensor], weights: Sequence[builtins.float] | None = None
    ) -> None:
        self.outputs = list(outputs)
        self.weights = None if weights is None else tuple(weights)
        if not self.outputs:
            raise ValueError(
                "A StepOutput was made from no outputs; expected a tensor for each microbatch. Pass"
                " at least one."
            )
        for index, output in enumerate(self.outputs):
            if not isinstance(output, Tensor):
                raise TypeError(
                    f"Output {index} of a StepOutput is a {type(output).__name__}; expected a"
                    " tensor for each microbatch. Keep other values in a list."
                )

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

    def __len__(self) -> int:
        return len(self.outputs)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        return self.outputs[index]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.outputs)

    def __getattr__(self, name: str) -> Any:
        # Reached only for what a StepOutput has not. `outputs` is asked for while it is unpickled.
        if not name.startswith("_") and hasattr(Tensor, name):
            raise AttributeError(
                f"A StepOutput has no attribute {name!r}: it holds a tensor for each microbatch;"
                " expected one of reduce_mean(), reduce_sum(), concat(), stack(), or an index,"
                f" each of which gives a tensor. Write for example .reduce_mean().{name}."
            )
        raise AttributeError(f"'StepOutput' object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return StepOutput, (self.outputs, self.weights)

    def __repr__(self) -> str:
        if all(output.dim() == 0 for output in self.outputs):
            return f"StepOutput({self.outputs!r})"
        kinds = list(dict.fromkeys(_describe(output) for output in self.outputs))
        return f"StepOutput({len(self.outputs)} × {' | '.join(kinds)})"

    def _stacked(self, operation: str) -> Tensor:
        try:
            return torch.stack(self.outputs)
        except RuntimeError as error:
            raise self._mismatch(
                operation, "one shape", "concatenate them with concat()"
            ) from error

    def _mismatch(self, operation: str, expected: str, instead: str) -> RuntimeError:
        listed = "; ".join(f"{i}: {_describe(output)}" for i, output in enumerate(self.outputs))
        return RuntimeError(
            f"{operation} of a StepOutput whose microbatches differ ({listed}); expected"
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
    if not values:
        raise ValueError(
            "There are no results to gather; expected those of at least one microbatch. Run the"
            " step function with a batch."
        )
    taken_apart = [flatten(value, _is_set) for value in values]
    structure = taken_apart[0][1]
    for _, other in taken_apart:
        if other != structure:
            raise RuntimeError(_differing([each for _, each in taken_apart]))
    columns = zip(*(leaves for leaves, _ in taken_apart), strict=True)
    gathered = [_gather_leaf(column, weights) for column in columns]
    for index in structure.attribute_leaves:
        gathered[index] = taken_apart[0][0][index]
    return structure.unflatten(gathered)


def _gather_leaf(column: tuple[Any, ...], weights: Sequence[float] | None) -> Any:
    if all(isinstance(value, Tensor) for value in column):
        return StepOutput(column, weights)
    if all(value is None for value in column):
        return None
    return list(column)


def _detach_leaf(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _is_set(container: Any) -> bool:
    return isinstance(container, (set, frozenset))


def _differing(structures: list[Structure]) -> str:
    """What to tell about microbatches that returned different containers."""
    alike: dict[Structure, list[int]] = {}
    for microbatch, structure in enumerate(structures):
        alike.setdefault(structure, []).append(microbatch)
    # Where most agree, the others are the ones to look at.
    common = max(alike, key=lambda structure: len(alike[structure]))
    odd = next(structure for structure in alike if structure != common)
    return (
        "The step function returned different containers: "
        + "; ".join(
            f"{_microbatches(numbers)} returned {structure!r}"
            for structure, numbers in alike.items()
        )
        + f". Microbatches {alike[common][0]} and {alike[odd][0]} first differ"
        f" {common.difference(odd)}; expected the same containers, lengths and keys in all."
        " Return the same ones from every path through the step function, with None where there is"
        " no value."
    )


def _microbatches(numbers: list[int]) -> str:
    return f"microbatch{'' if len(numbers) == 1 else 'es'} {', '.join(map(str, numbers))}"


def _describe(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"tensor of shape {tuple(tensor.shape)}, {dtype}, {tensor.device}"
