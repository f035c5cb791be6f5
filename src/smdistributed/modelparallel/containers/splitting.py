# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of a step function, bound to its parameters and cut into microbatches.

The script calls its step function with a whole batch; the body runs once for each microbatch, with
these arguments:

| argument | in each microbatch |
| --- | --- |
| named in `non_split_inputs` | the same object |
| tensor | its part along the axis of the argument, 0 by default |
| list, tuple, set, dict, other containers | the same container around what the rules give |
| object with `smp_slice(num_mb, mb, axis)` | what that returns |
| tensor without dimensions, number, text, None, `...` | the same object |
| what the framework knows as no batch: modules, dtypes | the same object |
| optimizer, any other object | the same object, and a warning, once for each type |
| loader, iterator | refused |

Which types are tensors, optimizers and so on, and how a tensor is cut, is what a framework's
`Cutting` says. What the table of the specification leaves open, and our choice:

- Dataclass instances are containers. An instance of a user's container class (dataclass, mapping,
  subclass of list, tuple, set or dict) that holds nothing to cut stays the same object: it is a
  configuration or a place to put results, not a batch.
- Attributes that a container has beside its items, such as the encodings of a BatchEncoding, are
  not cut.
- Defaults are arguments too: a tensor is cut. One that holds nothing to cut is left to Python, so
  that it stays the same object from call to call.
- With one microbatch, tensors are passed as they are, not as views.

Source: modelparallel specification, sections 3.3 and 4.2.
"""

from __future__ import annotations

import enum
import inspect
import io
import itertools
import os
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.containers.structures import (
    LEAF,
    Structure,
    flatten,
    is_container,
)

__all__ = ["ArgumentSplitter", "Call", "Cutting", "Rule", "Treatment", "weights_of"]

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


class Treatment(enum.Enum):
    """What becomes of an argument, or of something in it, by its type."""

    CUT = enum.auto()
    """A tensor."""
    SLICE = enum.auto()
    """Cuts itself, by `smp_slice`."""
    OPEN = enum.auto()
    """A container: the rules hold for what is in it."""
    WHOLE = enum.auto()
    """No batch, as everybody knows."""
    OPTIMIZER = enum.auto()
    """No batch, and out of place in a step."""
    OTHER = enum.auto()
    """Perhaps a batch, but of unknown make."""
    LOADER = enum.auto()
    """Gives batches; refused."""
    REFUSED = enum.auto()
    """Holds tensors that cannot be cut like others; `Cutting.why_refused` says why."""


# Asked for each leaf; a global is found faster than the attribute of an enumeration.
_CUT, _SLICE, _OPEN, _WHOLE = Treatment.CUT, Treatment.SLICE, Treatment.OPEN, Treatment.WHOLE

_ALWAYS_WHOLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
# Containers that are always copied; others are copied only if they hold something to cut.
_PLAIN = (list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque)

_P = inspect.Parameter
_MOST_SHAPES = 256


class Cutting(ABC):
    """A framework's part of the rules: which types are what, and how a tensor is cut.

    Attributes:
        tensor: the class of most tensors.
        complete_batches: how the user gets batches that divide, as a half sentence.
    """

    tensor: type
    complete_batches: str

    def __init__(self) -> None:
        self._treatments: dict[type, Treatment] = {}

    @abstractmethod
    def treat(self, cls: type) -> Treatment | None:
        """What becomes of instances of a class that the framework knows; None: as of others.

        Asked once for each class.
        """

    @abstractmethod
    def dims(self, tensor: Any) -> int:
        """How many dimensions a tensor has."""

    @abstractmethod
    def size(self, tensor: Any, axis: int) -> int:
        """The size of a tensor along an axis that it has."""

    @abstractmethod
    def shape(self, tensor: Any) -> tuple[int | None, ...]:
        """The shape of a tensor, for messages."""

    @abstractmethod
    def cut(self, tensor: Any, count: int, axis: int) -> Iterable[Any]:
        """`count` pieces of a tensor, the sizes of which differ by one at most, larger ones first.

        Raises:
            Uncuttable: it has no pieces.
        """

    def why_refused(self, value: Any) -> str:
        """For `Treatment.REFUSED`: what it is, and what to do instead."""
        raise NotImplementedError

    def treatment_of(self, cls: type) -> Treatment:
        """What becomes of instances of a class."""
        found = self._treatments.get(cls)
        if found is None:
            if len(self._treatments) >= 10_000:  # a program that makes classes in a loop
                self._treatments.clear()
            found = self._treatments[cls] = self._find_treatment(cls)
        return found

    def _find_treatment(self, cls: type) -> Treatment:
        if callable(getattr(cls, "smp_slice", None)):
            return Treatment.SLICE  # even if it is a container or a tensor otherwise
        known = self.treat(cls)
        if known is not None:
            return known
        if issubclass(cls, _ALWAYS_WHOLE):
            return Treatment.WHOLE
        if is_container(cls):
            return Treatment.OPEN
        # An open file is an iterator over lines, and nobody means those.
        if issubclass(cls, Iterator) and not issubclass(cls, io.IOBase):
            return Treatment.LOADER
        return Treatment.OTHER

    def stays_whole(self, container: Any) -> bool:
        """Whether a container is not to be opened."""
        cls = type(container)
        if cls in _PLAIN:
            return False
        return self.treatment_of(cls) is not _OPEN or not self.holds_something_to_cut(container)

    def holds_something_to_cut(self, value: Any) -> bool:
        """Whether the rules make pieces of a value, or refuse it."""
        leaves, structure = flatten(value, lambda node: self.treatment_of(type(node)) is not _OPEN)
        return any(
            index not in structure.attribute_leaves
            and (
                (treatment := self.treatment_of(type(leaf))) in (_SLICE, Treatment.REFUSED)
                or (treatment is _CUT and self.dims(leaf) > 0)
            )
            for index, leaf in enumerate(leaves)
        )


class Uncuttable(Exception):
    """A tensor has no pieces; says what kind of tensor it is, and what was expected."""


class Rule(NamedTuple):
    """What the decorator said about one argument.

    Attributes:
        name: of the parameter, or of the keyword argument that a parameter collects.
        is_whole: every microbatch gets the same.
        axis: along which tensors in it are cut.
    """

    name: str
    is_whole: bool
    axis: int


class _Plan(NamedTuple):
    """Rules for the calls that pass the same number and names of arguments.

    Attributes:
        positional: one for each positional argument.
        keyword: one for each keyword argument, in order.
        more_positional: defaults that are cut, to be passed behind the positional arguments.
        more_keyword: the same by keyword.
    """

    positional: list[Rule]
    keyword: list[Rule]
    more_positional: list[tuple[Any, Rule]]
    more_keyword: list[tuple[str, Any, Rule]]


class ArgumentSplitter:
    """Cuts the arguments of one step function.

    What depends on the function alone, and on the form of a call, is worked out once. Objects may
    be used from several threads.

    Args:
        function: the step function; its parameters give the arguments their names. A method that
            is called with its object as the first argument counts as a function.
        cutting: the framework's part of the rules.
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: name of an argument: the axis along which tensors in it are cut; negative
            ones count from the last. `non_split_inputs` wins.
        ragged: let the number of microbatches not divide a batch (our extension). Pieces then
            differ by at most one in size, larger ones first, and a batch that is smaller than the
            number of microbatches makes fewer, of size one. Whoever averages over microbatches
            weighs them by their sizes, see `weights_of`.

    Raises:
        TypeError: `non_split_inputs` is one string, or an axis is not an integer.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cutting: Cutting,
        *,
        non_split_inputs: Iterable[str] | None = None,
        input_split_axes: Mapping[str, int] | None = None,
        ragged: bool = False,
    ) -> None:
        if isinstance(non_split_inputs, str):
            raise TypeError(
                f"non_split_inputs is the string {non_split_inputs!r}; expected a list of names."
                f" Pass [{non_split_inputs!r}]."
            )
        self._function = function
        self._cutting = cutting
        self._tensor = cutting.tensor
        self.name = str(getattr(function, "__qualname__", None) or function)
        self._whole = frozenset(non_split_inputs or ())
        self._axes: dict[str, Any] = dict(input_split_axes or {})
        self._ragged = ragged
        for name, axis in self._axes.items():
            if not isinstance(axis, int) or isinstance(axis, bool):
                raise TypeError(
                    f"input_split_axes[{name!r}] is {axis!r}; expected an integer, the axis along"
                    " which tensors of that argument are cut. Name arguments that are not to be"
                    " cut in non_split_inputs."
                )
        self._signature: inspect.Signature | None = None  # until the first call
        self._cut_defaults: frozenset[str] = frozenset()
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], microbatches: int
    ) -> list[Call]:
        """The calls to make instead of `function(*args, **kwargs)`, in the order of the batch.

        Args:
            args: positional arguments; tensors of any shape, dtype and device.
            kwargs: keyword arguments.
            microbatches: how many calls to make, at least 1.

        Returns:
            `microbatches` calls, with `ragged` perhaps fewer. Containers are new, pieces of tensors
            are what the framework makes.

        Raises:
            ValueError: a size is not divisible; an axis does not exist; tensors make different
                numbers of pieces; or, at the first call, the decorator names an argument that the
                function does not have.
            TypeError: the function cannot be called like this, or an argument is an iterator, a
                loader, or otherwise what the framework refuses.
        """
        keys, positional, keyword = self._with_rules(args, kwargs)
        if self._ragged:
            microbatches = self._count_pieces([*positional, *keyword], microbatches)

        rows: Iterable[tuple[Any, ...]] = itertools.repeat((), microbatches)
        keyword_rows: Iterable[tuple[Any, ...]] = itertools.repeat((), microbatches)
        if positional:
            columns = [self._column(value, rule, microbatches) for value, rule in positional]
            rows = zip(*columns, strict=True)
        if keyword:
            columns = [self._column(value, rule, microbatches) for value, rule in keyword]
            keyword_rows = zip(*columns, strict=True)
        return [
            (row, dict(zip(keys, keyword_row, strict=True)))
            for row, keyword_row in zip(rows, keyword_rows, strict=True)
        ]

    def batch_size(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """The size of the first tensor that `split` cuts, along its axis; None if there is none."""
        _, positional, keyword = self._with_rules(args, kwargs)
        return next((size for size, *_ in self._cut_sizes([*positional, *keyword])), None)

    def _with_rules(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[str], list[tuple[Any, Rule]], list[tuple[Any, Rule]]]:
        """Names of the keyword arguments; and arguments, by position and by name, with their rules.

        Defaults that are cut are among them.
        """
        plan = self._plans.get((len(args), *kwargs))
        if plan is None:
            plan = self._make_plan(args, kwargs)
        positional = list(zip(args, plan.positional, strict=True))
        keyword = list(zip(kwargs.values(), plan.keyword, strict=True))
        keys = list(kwargs)
        if plan.more_positional or plan.more_keyword:
            positional += plan.more_positional
            keyword += [(value, rule) for _, value, rule in plan.more_keyword]
            keys += [key for key, _, _ in plan.more_keyword]
        return keys, positional, keyword

    # ---- names -----------------------------------------------------------------------------------

    def _make_plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Plan:
        signature = self._analyse() if self._signature is None else self._signature
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{self.name}: {error}; expected the arguments {signature}. Correct the call of"
                " the step function."
            ) from None
        parameters = signature.parameters.values()
        by_position = [
            p for p in parameters if p.kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD)
        ]
        rest = next((p.name for p in parameters if p.kind is _P.VAR_POSITIONAL), "")
        others = next((p.name for p in parameters if p.kind is _P.VAR_KEYWORD), "")
        named = {
            p.name for p in parameters if p.kind in (_P.POSITIONAL_OR_KEYWORD, _P.KEYWORD_ONLY)
        }

        names = [p.name for p in by_position[: len(args)]]
        names += [rest] * (len(args) - len(names))
        missing = [p for p in by_position[len(args) :] if p.kind is _P.POSITIONAL_ONLY]
        while missing and missing[-1].name not in self._cut_defaults:
            missing.pop()
        plan = _Plan(
            positional=[self._rule(name) for name in names],
            keyword=[self._rule(key, "" if key in named else others) for key in kwargs],
            more_positional=[(p.default, self._rule(p.name)) for p in missing],
            more_keyword=[
                (p.name, p.default, self._rule(p.name))
                for p in parameters
                if p.name in self._cut_defaults
                and p.name in named
                and p.name not in names
                and p.name not in kwargs
            ],
        )
        if len(self._plans) >= _MOST_SHAPES:
            self._plans.clear()
        self._plans[(len(args), *kwargs)] = plan
        return plan

    def _analyse(self) -> inspect.Signature:
        try:
            signature = inspect.signature(self._function)
        except ValueError:  # made in C, without one
            signature = inspect.Signature(
                [_P("args", _P.VAR_POSITIONAL), _P("kwargs", _P.VAR_KEYWORD)]
            )
        parameters = signature.parameters
        if not any(p.kind is _P.VAR_KEYWORD for p in parameters.values()):
            for option, names in (
                ("non_split_inputs", self._whole),
                ("input_split_axes", self._axes.keys()),
            ):
                unknown = sorted(names - parameters.keys())
                if unknown:
                    raise ValueError(
                        f"{option} of {self.name} names {', '.join(map(repr, unknown))}; expected"
                        f" names of its parameters: {', '.join(parameters) or '(it has none)'}."
                        " Correct the name in the decorator, or add the parameter."
                    )
        self._cut_defaults = frozenset(
            p.name
            for p in parameters.values()
            if p.default is not _P.empty and self._cutting.holds_something_to_cut(p.default)
        )
        self._signature = signature
        return signature

    def _rule(self, name: str, group: str = "") -> Rule:
        """`group`: the parameter that collects keyword arguments, for one that it collects."""
        axis = self._axes.get(name, self._axes.get(group, 0))
        return Rule(name, name in self._whole or group in self._whole, axis)

    # ---- values ----------------------------------------------------------------------------------

    def _column(self, value: Any, rule: Rule, count: int) -> Iterable[Any]:
        """What each of `count` microbatches gets for an argument."""
        if rule.is_whole:
            return itertools.repeat(value, count)
        if self._cutting.treatment_of(type(value)) is not _OPEN:
            return self._column_of_leaf(value, rule, count, LEAF, 0)
        leaves, structure = flatten(value, self._cutting.stays_whole)
        if structure.is_leaf:
            return self._column_of_leaf(value, rule, count, structure, 0)
        columns = [
            itertools.repeat(leaf, count)
            if index in structure.attribute_leaves
            else self._column_of_leaf(leaf, rule, count, structure, index)
            for index, leaf in enumerate(leaves)
        ]
        if not columns:
            return [structure.unflatten(()) for _ in range(count)]
        return [structure.unflatten(row) for row in zip(*columns, strict=True)]

    def _column_of_leaf(
        self, leaf: Any, rule: Rule, count: int, structure: Structure, index: int
    ) -> Iterable[Any]:
        """The same for a leaf of an argument; structure and index say which, for messages."""
        if type(leaf) is self._tensor:
            return self._pieces(leaf, rule, count, structure, index)
        treatment = self._cutting.treatment_of(type(leaf))
        if treatment is _CUT:
            return self._pieces(leaf, rule, count, structure, index)
        if treatment is _WHOLE or treatment is _OPEN:
            return itertools.repeat(leaf, count)
        if treatment is _SLICE or callable(getattr(leaf, "smp_slice", None)):
            return [leaf.smp_slice(count, microbatch, rule.axis) for microbatch in range(count)]
        self.refuse_or_warn(leaf, treatment, rule, structure, index)
        return itertools.repeat(leaf, count)

    def refuse_or_warn(
        self, leaf: Any, treatment: Treatment, rule: Rule, structure: Structure, index: int
    ) -> None:
        """For what is no tensor and not known to be whole: raises, or warns that it is not cut."""
        where = self.where(rule, structure, index)
        if treatment is Treatment.LOADER:
            raise TypeError(
                f"{where} is a {_name(type(leaf))}; expected a batch. Take batches from it outside"
                " of the step function, and pass the batches, not the loader."
            )
        if treatment is Treatment.REFUSED:
            raise TypeError(f"{where} is {self._cutting.why_refused(leaf)}")
        if treatment is Treatment.OPTIMIZER:
            _warn_once(
                type(leaf),
                f"{where} is an optimizer, {_name(type(leaf))}. Optimizers should be used outside"
                " of smp.step; using one inside might *potentially* be a bug, as its step would"
                " run once for each microbatch. It is passed whole.",
            )
        else:
            _warn_once(
                type(leaf),
                f"Non-splittable object of type {_name(type(leaf))}: {where} is passed whole to"
                " every microbatch; expected tensors, containers of them, or plain values. If it"
                " should be cut, implement a 'smp_slice' method: smp_slice(num_mb, mb, axis)"
                " returns the part of microbatch mb. If not, name the argument in"
                " non_split_inputs.",
            )

    def _pieces(
        self, tensor: Any, rule: Rule, count: int, structure: Structure, index: int
    ) -> Iterable[Any]:
        cutting = self._cutting
        axis = rule.axis
        dims = cutting.dims(tensor)
        if dims == 0:
            return itertools.repeat(tensor, count)
        if not -dims <= axis < dims:
            raise self.no_axis(tensor, rule, structure, index)
        if not self._ragged and cutting.size(tensor, axis) % count:
            raise self._indivisible(tensor, count, rule, structure, index)
        if count == 1:
            return (tensor,)
        try:
            return cutting.cut(tensor, count, axis)
        except Uncuttable as error:
            raise ValueError(
                f"{self.where(rule, structure, index)} is {error}. Convert it, or name the argument"
                " in non_split_inputs."
            ) from error.__cause__

    def _indivisible(
        self, tensor: Any, count: int, rule: Rule, structure: Structure, index: int
    ) -> ValueError:
        return ValueError(
            f"{self.where(rule, structure, index)} has size"
            f" {self._cutting.size(tensor, rule.axis)} along axis {rule.axis}, which is not"
            f" divisible by {count} microbatches; expected a multiple of {count}. Let every batch"
            f" have such a size ({self._cutting.complete_batches}), change the parameter"
            " microbatches, or name an argument that is not a batch in non_split_inputs."
        )

    def _count_pieces(self, values: list[tuple[Any, Rule]], microbatches: int) -> int:
        """How many pieces batches of any size make: the same number for all tensors."""
        found: int | None = None
        first = ""
        for size, rule, structure, index in self._cut_sizes(values):
            pieces = min(microbatches, max(1, size))
            if found is None:
                found = pieces
                first = f"{self.where(rule, structure, index)} has size {size}, {found} pieces"
            elif found != pieces:
                raise ValueError(
                    f"{self.where(rule, structure, index)} has size {size}, which makes"
                    f" {pieces} pieces with {microbatches} microbatches; expected as many as of"
                    f" other tensors ({first}). Give all of them one batch size, or name those"
                    " that are not a batch in non_split_inputs."
                )
        return microbatches if found is None else found

    def _cut_sizes(
        self, values: list[tuple[Any, Rule]]
    ) -> Iterator[tuple[int, Rule, Structure, int]]:
        """Of each tensor that is cut: its size along its axis, and where it is."""
        for value, rule in values:
            treatment = self._cutting.treatment_of(type(value))
            if rule.is_whole or (treatment is not _CUT and treatment is not _OPEN):
                continue
            leaves, structure = flatten(value, self._cutting.stays_whole)
            for index, leaf in enumerate(leaves):
                if self._cutting.treatment_of(type(leaf)) is not _CUT:
                    continue
                dims = self._cutting.dims(leaf)
                if dims == 0 or index in structure.attribute_leaves:
                    continue
                if not -dims <= rule.axis < dims:
                    raise self.no_axis(leaf, rule, structure, index)
                yield self._cutting.size(leaf, rule.axis), rule, structure, index

    def no_axis(self, tensor: Any, rule: Rule, structure: Structure, index: int) -> ValueError:
        """The error of an axis that a tensor does not have."""
        dims = self._cutting.dims(tensor)
        return ValueError(
            f"{self.where(rule, structure, index)} has shape {self._cutting.shape(tensor)}, in"
            f" which there is no axis {rule.axis}; expected one of {-dims} to {dims - 1}. Correct"
            f" input_split_axes of {self.name}, or name the argument in non_split_inputs."
        )

    def where(self, rule: Rule, structure: Structure, index: int) -> str:
        """Which leaf of which argument, for messages."""
        return f"Argument {structure.paths(rule.name)[index]} of {self.name}"


def weights_of(size: int, pieces: int) -> list[float]:
    """What each piece of a batch counts in a mean over the batch: its share of the rows."""
    if size == 0:
        return [1.0 / pieces] * pieces
    rows, more = divmod(size, pieces)
    return [(rows + (number < more)) / size for number in range(pieces)]


_warned: set[str] = set()


def _warn_once(cls: type, message: str) -> None:
    """Once for each type, and loudly in the first rank of the job only."""
    name = _name(cls)
    if name in _warned:
        return
    _warned.add(name)
    if os.environ.get("RANK", "0") == "0":
        get_logger().warning(message)
    else:
        get_logger().debug(message)


def _name(cls: type) -> str:
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
