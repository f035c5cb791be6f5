# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a step function returns: the results of its microbatches, gathered.

The body returned once for each microbatch. The caller gets the same containers once, and in the
place of each leaf

| the leaf is, in the microbatches | the caller gets |
| --- | --- |
| a tensor in all | a `StepOutput` of the framework |
| None in all | None |
| anything else | what the framework says: with PyTorch a plain list by microbatch |

Containers are those of `structures`, except sets, whose elements have no order in which those of
two microbatches would correspond: a set is a leaf. Attributes that a container has beside its items
are those of the first microbatch (our choice).

Source: modelparallel specification, sections 3.4 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar, overload

from smdistributed.modelparallel.containers.structures import Structure, flatten

__all__ = ["MicrobatchOutputs", "gather"]

T = TypeVar("T")


class MicrobatchOutputs(Generic[T]):
    """One tensor for each microbatch, in the order of the batch: what each `StepOutput` is.

    `len()`, indexing and iteration give the tensors (our extension). A class of a framework says
    what its tensors are, and how they are put together.

    Attributes:
        outputs: the list of tensors.

    Raises:
        ValueError: there are no outputs.
        TypeError: one is not a tensor.
    """

    __slots__ = ("outputs",)

    # The class of the framework whose attributes users may look for here.
    _tensor_class: ClassVar[type]
    # In words, the methods that make one tensor of all.
    _methods: ClassVar[str]

    outputs: list[T]

    def __init__(self, outputs: Sequence[T]) -> None:
        self.outputs = list(outputs)
        if not self.outputs:
            raise ValueError(
                "A StepOutput was made from no outputs; expected a tensor for each microbatch. Pass"
                " at least one."
            )
        for index, output in enumerate(self.outputs):
            if not self._is_tensor(output):
                raise TypeError(
                    f"Output {index} of a StepOutput is a {type(output).__name__}; expected a"
                    " tensor for each microbatch. Keep other values in a list."
                )

    @staticmethod
    def _is_tensor(value: Any) -> bool:
        """Whether this is what a `StepOutput` holds."""
        raise NotImplementedError

    @staticmethod
    def _describe(output: Any) -> str:
        """An output in words: its shape, dtype and so on."""
        raise NotImplementedError

    @staticmethod
    def _is_scalar(output: Any) -> bool:
        """Whether an output has no dimensions."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.outputs)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.outputs[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.outputs)

    def __getattr__(self, name: str) -> Any:
        # Reached only for what a StepOutput has not. `outputs` is asked for while it is unpickled.
        if not name.startswith("_") and hasattr(self._tensor_class, name):
            raise AttributeError(
                f"A StepOutput has no attribute {name!r}: it holds a tensor for each microbatch;"
                f" expected one of {self._methods}, or an index,"
                f" each of which gives a tensor. Write for example .reduce_mean().{name}."
            )
        raise AttributeError(f"'StepOutput' object has no attribute {name!r}")

    def __repr__(self) -> str:
        if all(self._is_scalar(output) for output in self.outputs):
            return f"StepOutput({self.outputs!r})"
        kinds = list(dict.fromkeys(self._describe(output) for output in self.outputs))
        return f"StepOutput({len(self.outputs)} × {' | '.join(kinds)})"

    def _listed(self) -> str:
        """Each output in words, with its number."""
        return "; ".join(f"{i}: {self._describe(each)}" for i, each in enumerate(self.outputs))


def gather(values: Sequence[Any], gather_leaf: Callable[[tuple[Any, ...]], Any]) -> Any:
    """What the step function returns, from what its body returned in each microbatch.

    Args:
        values: by microbatch; at least one.
        gather_leaf: gets a leaf's values by microbatch, which are not None in all; gives what
            stands for them.

    Returns:
        The containers of the values around what `gather_leaf` gives, and None.

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
    gathered: list[Any] = []
    columns = zip(*(leaves for leaves, _ in taken_apart), strict=True)
    for index, column in enumerate(columns):
        if index in structure.attribute_leaves:
            gathered.append(column[0])
        elif column[0] is None and all(value is None for value in column):
            gathered.append(None)
        else:
            gathered.append(gather_leaf(column))
    return structure.unflatten(gathered)


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
