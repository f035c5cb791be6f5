# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of a step function, cut into microbatches.

The script calls its step function with a whole batch; the body runs once for each microbatch, with
these arguments:

| argument | in each microbatch |
| --- | --- |
| named in `non_split_inputs` | the same object |
| tensor | a view of its part along the axis of the argument, 0 by default |
| list, tuple, set, dict, other containers | the same container around what the rules give |
| object with `smp_slice(num_mb, mb, axis)` | what that returns |
| tensor without dimensions, number, text, None, `...`, dtype, device | the same object |
| `nn.Module`, `GradScaler` | the same object |
| optimizer, any other object | the same object, and a warning, once for each type |
| `DataLoader`, iterator | refused |

What the table of the specification leaves open, and our choice:

- Dataclass instances are containers. An instance of a user's container class (dataclass, mapping,
  subclass of list, tuple, set or dict) that holds nothing to cut stays the same object: it is a
  configuration or a place to put results, not a batch.
- Attributes that a container has beside its items, such as the encodings of a BatchEncoding, are
  not cut.
- Defaults are arguments too: a tensor is cut. One that holds nothing to cut is left to Python, so
  that it stays the same object from call to call.
- With one microbatch, tensors are passed as they are, not as views.
- `PackedSequence` is refused: it is a tuple of tensors that do not share a batch axis.

Cutting happens in the caller's process, on the leader alone; tensors stay on their device.

Source: modelparallel specification, sections 3.3 and 4.2.
"""

from __future__ import annotations

import inspect
import io
import itertools
import os
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.containers.structures import (
    LEAF,
    Structure,
    flatten,
    is_container,
)
from smdistributed.modelparallel.torch.pipeline.values.objects import IMMUTABLE

__all__ = ["ArgumentSplitter", "Call", "weights_of"]

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_Treatment = Literal["cut", "slice", "open", "whole", "optimizer", "other", "loader", "packed"]

_WHOLE = (*IMMUTABLE, np.generic, torch.amp.GradScaler, nn.Module)
# Containers that are always copied; others are copied only if they hold something to cut.
_PLAIN = (list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque)

_P = inspect.Parameter
_MOST_SHAPES = 256


class _Rule(NamedTuple):
    """What the decorator said about one argument."""

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

    positional: list[_Rule]
    keyword: list[_Rule]
    more_positional: list[tuple[Any, _Rule]]
    more_keyword: list[tuple[str, Any, _Rule]]


class ArgumentSplitter:
    """Cuts the arguments of one step function.

    What depends on the function alone, and on the form of a call, is worked out once. Objects may
    be used from several threads.

    Args:
        function: the step function; its parameters give the arguments their names. A method that
            is called with its object as the first argument counts as a function.
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
        self._name = str(getattr(function, "__qualname__", None) or function)
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
            `microbatches` calls, with `ragged` perhaps fewer. Tensors share memory with the
            arguments (sparse ones are copies), containers are new.

        Raises:
            ValueError: a size is not divisible; an axis does not exist; tensors make different
                numbers of pieces; or, at the first call, the decorator names an argument that the
                function does not have.
            TypeError: the function cannot be called like this, or an argument is an iterator, a
                `DataLoader` or a `PackedSequence`.
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
    ) -> tuple[list[str], list[tuple[Any, _Rule]], list[tuple[Any, _Rule]]]:
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
                f"{self._name}: {error}; expected the arguments {signature}. Correct the call of"
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
                        f"{option} of {self._name} names {', '.join(map(repr, unknown))}; expected"
                        f" names of its parameters: {', '.join(parameters) or '(it has none)'}."
                        " Correct the name in the decorator, or add the parameter."
                    )
        self._cut_defaults = frozenset(
            p.name
            for p in parameters.values()
            if p.default is not _P.empty and _holds_something_to_cut(p.default)
        )
        self._signature = signature
        return signature

    def _rule(self, name: str, group: str = "") -> _Rule:
        """`group`: the parameter that collects keyword arguments, for one that it collects."""
        axis = self._axes.get(name, self._axes.get(group, 0))
        return _Rule(name, name in self._whole or group in self._whole, axis)

    # ---- values ----------------------------------------------------------------------------------

    def _column(self, value: Any, rule: _Rule, count: int) -> Iterable[Any]:
        """What each of `count` microbatches gets for an argument."""
        if rule.is_whole:
            return itertools.repeat(value, count)
        if _treatment_of(type(value)) != "open":
            return self._column_of_leaf(value, rule, count, LEAF, 0)
        leaves, structure = flatten(value, _stays_whole)
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
        self, leaf: Any, rule: _Rule, count: int, structure: Structure, index: int
    ) -> Iterable[Any]:
        """The same for a leaf of an argument; structure and index say which, for messages."""
        if type(leaf) is Tensor:
            return self._pieces(leaf, rule, count, structure, index)
        treatment = _treatment_of(type(leaf))
        if treatment == "cut":
            return self._pieces(leaf, rule, count, structure, index)
        if treatment == "whole" or treatment == "open":
            return itertools.repeat(leaf, count)
        if treatment == "slice" or callable(getattr(leaf, "smp_slice", None)):
            return [leaf.smp_slice(count, microbatch, rule.axis) for microbatch in range(count)]
        where = self._where(rule, structure, index)
        if treatment == "loader":
            raise TypeError(
                f"{where} is a {_name(type(leaf))}; expected a batch. Take batches from it outside"
                " of the step function, and pass the batches, not the loader."
            )
        if treatment == "packed":
            raise TypeError(
                f"{where} is a PackedSequence, whose tensors have no common batch axis; expected a"
                " tensor. Pass the padded tensor and the lengths, and pack them inside of the step"
                " function; or name the argument in non_split_inputs."
            )
        if treatment == "optimizer":
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
        return itertools.repeat(leaf, count)

    def _pieces(
        self, tensor: Tensor, rule: _Rule, count: int, structure: Structure, index: int
    ) -> Iterable[Tensor]:
        axis = rule.axis
        dims = tensor.dim()
        if dims == 0:
            return itertools.repeat(tensor, count)
        if not -dims <= axis < dims:
            raise self._no_axis(tensor, rule, structure, index)
        if not self._ragged and tensor.shape[axis] % count:
            raise ValueError(
                f"{self._where(rule, structure, index)} has size {tensor.shape[axis]} along axis"
                f" {axis}, which is not divisible by {count} microbatches; expected a multiple of"
                f" {count}. Let every batch have such a size (a DataLoader with drop_last=True"
                " leaves a smaller last one out), change the parameter microbatches, or name an"
                " argument that is not a batch in non_split_inputs."
            )
        if count == 1:
            return (tensor,)
        try:
            return tensor.tensor_split(count, axis)
        except (RuntimeError, NotImplementedError) as error:
            if tensor.layout is torch.sparse_coo:  # cannot be viewed
                return _sparse_pieces(tensor, count, axis)
            raise ValueError(
                f"{self._where(rule, structure, index)} is a tensor of layout"
                f" {str(tensor.layout).removeprefix('torch.')}, which torch cannot cut along axis"
                f" {axis}; expected a dense or sparse COO tensor. Convert it, or name the argument"
                " in non_split_inputs."
            ) from error

    def _count_pieces(self, values: list[tuple[Any, _Rule]], microbatches: int) -> int:
        """How many pieces batches of any size make: the same number for all tensors."""
        found: int | None = None
        first = ""
        for size, rule, structure, index in self._cut_sizes(values):
            pieces = min(microbatches, max(1, size))
            if found is None:
                found = pieces
                first = f"{self._where(rule, structure, index)} has size {size}, {found} pieces"
            elif found != pieces:
                raise ValueError(
                    f"{self._where(rule, structure, index)} has size {size}, which makes"
                    f" {pieces} pieces with {microbatches} microbatches; expected as many as of"
                    f" other tensors ({first}). Give all of them one batch size, or name those"
                    " that are not a batch in non_split_inputs."
                )
        return microbatches if found is None else found

    def _cut_sizes(
        self, values: list[tuple[Any, _Rule]]
    ) -> Iterator[tuple[int, _Rule, Structure, int]]:
        """Of each tensor that is cut: its size along its axis, and where it is."""
        for value, rule in values:
            if rule.is_whole or _treatment_of(type(value)) not in ("cut", "open"):
                continue
            leaves, structure = flatten(value, _stays_whole)
            for index, leaf in enumerate(leaves):
                if _treatment_of(type(leaf)) != "cut" or leaf.dim() == 0:
                    continue
                if index in structure.attribute_leaves:
                    continue
                if not -leaf.dim() <= rule.axis < leaf.dim():
                    raise self._no_axis(leaf, rule, structure, index)
                yield leaf.shape[rule.axis], rule, structure, index

    def _no_axis(self, tensor: Tensor, rule: _Rule, structure: Structure, index: int) -> ValueError:
        dims = tensor.dim()
        return ValueError(
            f"{self._where(rule, structure, index)} has shape {tuple(tensor.shape)}, in which there"
            f" is no axis {rule.axis}; expected one of {-dims} to {dims - 1}. Correct"
            f" input_split_axes of {self._name}, or name the argument in non_split_inputs."
        )

    def _where(self, rule: _Rule, structure: Structure, index: int) -> str:
        return f"Argument {structure.paths(rule.name)[index]} of {self._name}"


def weights_of(size: int, pieces: int) -> list[float]:
    """What each piece of a batch counts in a mean over the batch: its share of the rows."""
    if size == 0:
        return [1.0 / pieces] * pieces
    rows, more = divmod(size, pieces)
    return [(rows + (number < more)) / size for number in range(pieces)]


_treatments: dict[type, _Treatment] = {}


def _treatment_of(cls: type) -> _Treatment:
    found = _treatments.get(cls)
    if found is None:
        if len(_treatments) >= 10_000:  # a program that makes classes in a loop
            _treatments.clear()
        found = _treatments[cls] = _find_treatment(cls)
    return found


def _find_treatment(cls: type) -> _Treatment:
    if callable(getattr(cls, "smp_slice", None)):
        return "slice"  # even if it is a container or a tensor otherwise
    if issubclass(cls, Tensor):
        return "cut"
    if issubclass(cls, _WHOLE):
        return "whole"
    if issubclass(cls, PackedSequence):
        return "packed"
    if is_container(cls):
        return "open"
    if issubclass(cls, torch.optim.Optimizer):
        return "optimizer"
    # An open file is an iterator over lines, and nobody means those.
    if issubclass(cls, (DataLoader, Iterator)) and not issubclass(cls, io.IOBase):
        return "loader"
    return "other"


def _stays_whole(container: Any) -> bool:
    """Whether a container is not to be opened."""
    cls = type(container)
    if cls in _PLAIN:
        return False
    return _treatment_of(cls) != "open" or not _holds_something_to_cut(container)


def _holds_something_to_cut(value: Any) -> bool:
    leaves, structure = flatten(value, lambda node: _treatment_of(type(node)) != "open")
    return any(
        index not in structure.attribute_leaves
        and (
            (treatment := _treatment_of(type(leaf))) in ("slice", "packed")
            or (treatment == "cut" and leaf.dim() > 0)
        )
        for index, leaf in enumerate(leaves)
    )


def _sparse_pieces(tensor: Tensor, count: int, axis: int) -> list[Tensor]:
    size, larger = divmod(tensor.shape[axis], count)
    sizes = [size + (index < larger) for index in range(count)]
    starts = itertools.accumulate(sizes, initial=0)
    return [
        torch.narrow_copy(tensor, axis, start, length)
        for start, length in zip(starts, sizes, strict=False)
    ]


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
