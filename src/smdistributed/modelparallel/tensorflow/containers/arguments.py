# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A call of a step function: the tensors in its arguments, and a signature of all the rest.

The body is traced once for a signature, with symbolic tensors in the place of the pieces of a
microbatch; later calls give tensors alone.

    call = splitter.bind(args, kwargs, microbatches)
    program = programs.get(call.signature)               # or, the first time:
    args, kwargs = call.rebuild(placeholders)            # one of each spec in call.specs
    for number in range(microbatches):
        run(program, call.pieces(number))

What the body sees of an argument that is no tensor is what the first call with the signature
passed. So the signature has plain values by value and type, containers by what is in them, and
other objects by identity.

Source: TensorFlow modelparallel specification, section 5.2.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.modelparallel.containers import splitting
from smdistributed.modelparallel.containers.splitting import Call, Rule, Treatment
from smdistributed.modelparallel.tensorflow.containers import LEAF, Structure, flatten
from smdistributed.modelparallel.tensorflow.containers.cutting import CUTTING, require_divisible
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput

__all__ = ["ArgumentSplitter", "BoundCall"]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ArgumentSplitter(splitting.ArgumentSplitter):
    """Binds and cuts the arguments of one step function.

    Args:
        function: the step function; its parameters give the arguments their names.
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: name of an argument: the axis along which tensors in it are cut.
        input_signature: `tf.TensorSpec`s of the unsplit arguments, in the order of the parameters,
            nested as the arguments are. What is passed becomes a tensor of that dtype, and one
            signature serves all batches that the specs describe.

    Raises:
        TypeError: `non_split_inputs` is one string, an axis is not an integer, or there is
            something else than a `tf.TensorSpec` in `input_signature`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        non_split_inputs: Iterable[str] | None = None,
        input_split_axes: Mapping[str, int] | None = None,
        input_signature: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(
            function,
            CUTTING,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
        )
        self._specs = None if input_signature is None else _require_specs(input_signature)

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], microbatches: int
    ) -> BoundCall:
        """What a call passes.

        Args:
            args: positional arguments; tensors eager or symbolic, of any dtype.
            kwargs: keyword arguments.
            microbatches: into how many parts the batch is cut, at least 1.

        Raises:
            ValueError: a size that is known is not divisible; an axis does not exist; an argument
                is not what `input_signature` says; or, at the first call, the decorator names an
                argument that the function does not have.
            TypeError: the function cannot be called like this, or an argument is a dataset, an
                iterator, or a tensor of a kind that is not cut.
        """
        specs: list[list[tf.TensorSpec]] = []
        if self._specs is not None:
            args, kwargs, specs = self._conform(args, kwargs)
        keys, positional, keyword = self._with_rules(args, kwargs)
        binding = _Binding(self, microbatches)
        nodes = [
            binding.argument(value, rule, specs[number] if number < len(specs) else None)
            for number, (value, rule) in enumerate([*positional, *keyword])
        ]
        signature = (microbatches, len(positional), tuple(keys), *binding.signature)
        return BoundCall(
            self.name, microbatches, signature, binding.inputs, nodes, len(positional), keys
        )

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], microbatches: int
    ) -> list[Call]:
        """The arguments of each microbatch, in the order of the batch.

        Raises: as `bind`, and `BoundCall.pieces`.
        """
        call = self.bind(args, kwargs, microbatches)
        return [call.rebuild(call.pieces(number)) for number in range(microbatches)]

    def _conform(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[list[tf.TensorSpec]]]:
        """The arguments as tensors, by position, and the specs of the tensors in each."""
        assert self._specs is not None
        signature = self._analyse() if self._signature is None else self._signature
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{self.name}: {error}; expected the arguments {signature}. Correct the call of"
                " the step function."
            ) from None
        given = list(bound.arguments)
        bound.apply_defaults()
        names = _names_by_position(signature, len(bound.args))
        count = len(self._specs)
        undescribed = set(names[count:]) | (set(given) - set(names))
        if len(names) < count or undescribed & set(given):
            raise TypeError(
                f"{self.name} was called with the arguments {', '.join(given) or '(none)'};"
                f" expected one for each of the {len(self._specs)} specs of its input_signature."
                " Correct the call, or the input_signature."
            )
        values, specs = [], []
        for name, value, spec in zip(names, bound.args, self._specs, strict=False):
            tensors, leaf_specs = self._conform_one(name, value, spec)
            values.append(tensors)
            specs.append(leaf_specs)
        return tuple(values), {}, specs

    def _conform_one(self, name: str, value: Any, spec: Any) -> tuple[Any, list[tf.TensorSpec]]:
        leaves, structure = flatten(value)
        specs, expected = flatten(spec)
        if structure != expected:
            raise ValueError(
                f"Argument {name} of {self.name} is nested otherwise than its input_signature:"
                f" {structure.difference(expected)}; expected {expected!r}. Correct the call, or"
                " the input_signature."
            )
        paths = structure.paths(name)
        tensors = [
            self._conform_leaf(path, leaf, leaf_spec)
            for path, leaf, leaf_spec in zip(paths, leaves, specs, strict=True)
        ]
        return structure.unflatten(tensors), specs

    def _conform_leaf(self, path: str, leaf: Any, spec: tf.TensorSpec) -> tf.Tensor:
        try:
            tensor = tf.convert_to_tensor(leaf, dtype=spec.dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Argument {path} of {self.name} is no tensor of {spec.dtype.name} ({error});"
                f" expected {spec}, as its input_signature says. Cast it, or correct the"
                " input_signature."
            ) from error
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"Argument {path} of {self.name} has shape {tensor.shape}; expected {spec.shape}"
                " for the whole batch, as its input_signature says. Pass such a batch, or correct"
                " the input_signature."
            )
        return tensor


def _names_by_position(signature: inspect.Signature, count: int) -> list[str]:
    """The parameters of so many positional arguments; that of `*rest` for each that it collects."""
    names = [p.name for p in signature.parameters.values() if p.kind in _BY_POSITION][:count]
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL), "")
    return names + [rest] * (count - len(names))


def _require_specs(input_signature: Sequence[Any]) -> list[Any]:
    for spec in flatten(list(input_signature))[0]:
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(
                f"input_signature holds {spec!r}; expected a tf.TensorSpec for each tensor of the"
                " unsplit arguments. Leave input_signature out if the function takes other values."
            )
    return list(input_signature)


# ---- one call ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Input:
    """Something that a microbatch gets as a tensor.

    Attributes:
        tensors: the tensor of the whole batch; or those of the microbatches, if an object has cut
            itself.
        axis: along which it is cut; None: it is not.
        spec: of what a microbatch gets.
        path: how it is reached, from the name of its argument.
    """

    tensors: list[tf.Tensor]
    axis: int | None
    spec: tf.TensorSpec
    path: Callable[[], str]


@dataclasses.dataclass(frozen=True)
class _Place:
    """Stands where an input goes."""

    number: int


@dataclasses.dataclass(frozen=True)
class _Constant:
    """Stands where a value goes that all microbatches share, of all calls with the signature."""

    value: Any


@dataclasses.dataclass(frozen=True)
class _Container:
    """Stands where a container goes."""

    structure: Structure
    items: list[_Node]


@dataclasses.dataclass(frozen=True)
class _Composite:
    """Stands where a composite goes that is not cut, such as a `RaggedTensor`."""

    spec: tf.TypeSpec
    numbers: list[int]


_Node = _Place | _Constant | _Container | _Composite


class BoundCall:
    """What a call of a step function passes, taken apart.

    Attributes:
        microbatches: into how many parts the batch is cut.
        signature: hashable; equal for calls that differ in the values of tensors alone. It has the
            shapes and dtypes of what a microbatch gets, as far as they are known.
        specs: `tf.TensorSpec` of each input of the body, in order.
        axes: of each input, the axis along which it is cut; None: it is not.
        tensors: those of the whole batch, in order. As many as inputs, unless an argument cuts
            itself with `smp_slice`, which makes one for each microbatch.
    """

    def __init__(
        self,
        name: str,
        microbatches: int,
        signature: Hashable,
        inputs: list[_Input],
        nodes: list[_Node],
        num_positional: int,
        keys: list[str],
    ) -> None:
        self._name = name
        self.microbatches = microbatches
        self.signature = signature
        self.specs = [each.spec for each in inputs]
        self.axes = [each.axis for each in inputs]
        self.tensors = [tensor for each in inputs for tensor in each.tensors]
        self._inputs = inputs
        self._nodes = nodes
        self._num_positional = num_positional
        self._keys = keys

    @property
    def whole_specs(self) -> list[tf.TensorSpec]:
        """`tf.TensorSpec` of each of `tensors`, for all calls with the signature."""
        return [_whole_spec(each, self.microbatches) for each in self._inputs for _ in each.tensors]

    def without_tensors(self) -> BoundCall:
        """The same, to `cut` other tensors and to `rebuild`; it holds no batch and no graph."""
        inputs = [
            dataclasses.replace(
                each, tensors=[_whole_spec(each, self.microbatches)] * len(each.tensors)
            )
            for each in self._inputs
        ]
        return BoundCall(
            self._name,
            self.microbatches,
            self.signature,
            inputs,
            self._nodes,
            self._num_positional,
            self._keys,
        )

    def pieces(self, microbatch: int) -> list[tf.Tensor]:
        """What one microbatch gets, in the order of `specs`.

        Symbolic tensors are cut in the graph in which this is called first. If a size is not
        known, they are cut behind a check of it.

        Raises:
            tf.errors.InvalidArgumentError: when that graph runs: a size does not divide.
        """
        return self._rows[microbatch]

    def cut(self, tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """The same for other tensors in the place of `tensors`, of all microbatches.

        For a call whose tensors were symbolic, when their values are there.

        Raises:
            ValueError: a size does not divide.
        """
        if len(tensors) != len(self.tensors):
            raise ValueError(
                f"{len(tensors)} tensors were given to a call of {len(self.tensors)}; expected"
                " exactly as many. Pass one for each of its tensors."
            )
        columns: list[Sequence[tf.Tensor]] = []
        waiting = iter(tensors)
        for each in self._inputs:
            given = [next(waiting) for _ in each.tensors]
            columns.append(self._column(each, given))
        if not columns:
            return [[] for _ in range(self.microbatches)]
        return [list(row) for row in zip(*columns, strict=True)]

    def describe(self, tensors: Sequence[tf.Tensor] | None = None) -> list[str]:
        """Path, dtype and shape of each tensor of the whole batch: for people, and other ranks.

        Args:
            tensors: others in the place of `tensors`.
        """
        paths = [each.path for each in self._inputs for _ in each.tensors]
        shown = self.tensors if tensors is None else tensors
        return [
            f"{path()}: {tensor.dtype.name} {_shown_shape(tensor.shape)}"
            for path, tensor in zip(paths, shown, strict=True)
        ]

    def rebuild(self, tensors: Sequence[tf.Tensor]) -> Call:
        """Positional and keyword arguments of the body around the inputs of one microbatch.

        Args:
            tensors: in the order of `specs`; pieces, or symbolic tensors in their place.

        Raises:
            ValueError: their number is wrong.
        """
        if len(tensors) != len(self._inputs):
            raise ValueError(
                f"{len(tensors)} tensors were given to a call of {len(self._inputs)}; expected"
                " exactly as many. Pass one for each of its specs."
            )
        values = [_build(node, tensors) for node in self._nodes]
        positional, keyword = values[: self._num_positional], values[self._num_positional :]
        return tuple(positional), dict(zip(self._keys, keyword, strict=True))

    @functools.cached_property
    def _rows(self) -> list[list[tf.Tensor]]:
        return self.cut(self.tensors)

    def _column(self, each: _Input, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        """What the microbatches get for an input."""
        count = self.microbatches
        if each.axis is None:
            return tensors if len(tensors) == count else tensors * count
        (tensor,) = tensors
        size = tensor.shape[each.axis]
        if count > 1 and size is None:
            before, behind = _indivisible(each.path(), self._name, each.axis, count)
            tensor = require_divisible(tensor, each.axis, count, before, behind)
        elif size is not None and size % count:
            words = _indivisible(each.path(), self._name, each.axis, count)
            raise ValueError(str(size).join(words))
        return [tensor] if count == 1 else list(CUTTING.cut(tensor, count, each.axis))


def _whole_spec(each: _Input, microbatches: int) -> tf.TensorSpec:
    """Of the tensor of the whole batch."""
    if each.axis is None or each.spec.shape.rank is None:
        return each.spec
    sizes = each.spec.shape.as_list()
    size = sizes[each.axis]
    sizes[each.axis] = None if size is None else size * microbatches
    return tf.TensorSpec(sizes, each.spec.dtype)


def _shown_shape(shape: tf.TensorShape) -> str:
    return "of unknown shape" if shape.rank is None else str(tuple(shape))


def _indivisible(path: str, name: str, axis: int, count: int) -> tuple[str, str]:
    """What the error of a size says before the size, and behind it."""
    behind = (
        f" elements along axis {axis} of this argument of {name}, which is not divisible by"
        f" {count} microbatches; expected a multiple of {count}. Let every batch have such a size"
        f" ({CUTTING.complete_batches}), change the parameter microbatches, or name an argument"
        " that is not a batch in non_split_inputs."
    )
    return f"{path}: ", behind


def _build(node: _Node, tensors: Sequence[tf.Tensor]) -> Any:
    if isinstance(node, _Place):
        return tensors[node.number]
    if isinstance(node, _Constant):
        return node.value
    if isinstance(node, _Composite):
        components = [tensors[number] for number in node.numbers]
        return tf.nest.pack_sequence_as(node.spec, components, expand_composites=True)
    return node.structure.unflatten([_build(item, tensors) for item in node.items])


# ---- binding -------------------------------------------------------------------------------------


class _Binding:
    """The inputs and the signature of a call, while its arguments are looked at.

    Attributes:
        inputs: found so far.
        signature: parts of it found so far.
    """

    def __init__(self, splitter: ArgumentSplitter, microbatches: int) -> None:
        self._splitter = splitter
        self._count = microbatches
        self.inputs: list[_Input] = []
        self.signature: list[Hashable] = []

    def argument(self, value: Any, rule: Rule, specs: list[tf.TensorSpec] | None) -> _Node:
        """The node of an argument; `specs` are those of its tensors, by `input_signature`."""
        waiting = None if specs is None else iter(specs)
        if CUTTING.treatment_of(type(value)) is not Treatment.OPEN:
            return self._leaf(value, rule, LEAF, 0, rule.is_whole, waiting)
        if rule.is_whole and not CUTTING.holds_something_to_cut(value):
            self.signature.append(_key_of(value))
            return _Constant(value)
        leaves, structure = flatten(value, CUTTING.stays_whole)
        self._sign_structure(structure)
        items = [
            self._leaf(
                leaf,
                rule,
                structure,
                index,
                rule.is_whole or index in structure.attribute_leaves,
                waiting,
            )
            for index, leaf in enumerate(leaves)
        ]
        return _Container(structure, items)

    def _leaf(
        self,
        leaf: Any,
        rule: Rule,
        structure: Structure,
        index: int,
        is_whole: bool,
        specs: Iterator[tf.TensorSpec] | None,
    ) -> _Node:
        treatment = CUTTING.treatment_of(type(leaf))
        if treatment is Treatment.CUT:
            tensor = self._tensor(leaf, rule, structure, index)
            spec = None if specs is None else next(specs)
            shape = tensor.shape if spec is None else spec.shape
            if is_whole or tensor.shape.rank == 0:
                return self._whole(tensor, shape, _path(rule, structure, index))
            return self._cut(tensor, shape, rule, structure, index)
        if not is_whole:
            if treatment is Treatment.SLICE or callable(getattr(leaf, "smp_slice", None)):
                return self._sliced(leaf, rule, structure, index)
            if treatment not in (Treatment.WHOLE, Treatment.OPEN):
                self._splitter.refuse_or_warn(leaf, treatment, rule, structure, index)
        elif treatment is Treatment.REFUSED:
            if isinstance(leaf, StepOutput):
                self._splitter.refuse_or_warn(leaf, treatment, rule, structure, index)
            return self._composite(leaf, _path(rule, structure, index))
        self.signature.append(_key_of(leaf))
        return _Constant(leaf)

    def _tensor(self, leaf: Any, rule: Rule, structure: Structure, index: int) -> tf.Tensor:
        if isinstance(leaf, tf.Tensor):
            return leaf
        try:
            return tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{self._splitter.where(rule, structure, index)} is a {type(leaf).__name__} of"
                f" which TensorFlow makes no tensor ({error}); expected numbers or strings. Pass"
                " what the model takes."
            ) from error

    def _whole(self, tensor: tf.Tensor, shape: tf.TensorShape, path: Callable[[], str]) -> _Place:
        return self._input(_Input([tensor], None, tf.TensorSpec(shape, tensor.dtype), path))

    def _cut(
        self,
        tensor: tf.Tensor,
        shape: tf.TensorShape,
        rule: Rule,
        structure: Structure,
        index: int,
    ) -> _Place:
        if tensor.shape.rank is None:
            raise ValueError(
                f"{self._splitter.where(rule, structure, index)} has no known number of dimensions;"
                " expected one, to cut the tensor or to pass it whole. Call its set_shape, or"
                " tf.ensure_shape, before the step."
            )
        rank = len(tensor.shape)
        if not -rank <= rule.axis < rank:
            raise self._splitter.no_axis(tensor, rule, structure, index)
        path = _path(rule, structure, index)
        sizes = [None] * rank if shape.rank is None else shape.as_list()
        size = sizes[rule.axis]
        for known in (tensor.shape[rule.axis], size):
            if known is not None and known % self._count:
                words = _indivisible(path(), self._splitter.name, rule.axis, self._count)
                raise ValueError(str(known).join(words))
        if size is not None:
            sizes[rule.axis] = size // self._count
        spec = tf.TensorSpec(sizes, tensor.dtype)
        return self._input(_Input([tensor], rule.axis, spec, path))

    def _sliced(self, obj: Any, rule: Rule, structure: Structure, index: int) -> _Node:
        """Of an object that cuts itself."""
        slices = [obj.smp_slice(self._count, number, rule.axis) for number in range(self._count)]
        where = f"What smp_slice of {self._splitter.where(rule, structure, index)} returns"
        taken_apart = [flatten(each) for each in slices]
        made = taken_apart[0][1]
        for _, other in taken_apart:
            if other != made:
                raise ValueError(
                    f"{where} differs between microbatches: {made.difference(other)}; expected the"
                    " same containers in all. Correct smp_slice."
                )
        self._sign_structure(made)
        columns = zip(*(leaves for leaves, _ in taken_apart), strict=True)
        path = _path(rule, structure, index)
        return _Container(made, [self._column(list(column), where, path) for column in columns])

    def _column(self, values: list[Any], where: str, path: Callable[[], str]) -> _Node:
        if CUTTING.treatment_of(type(values[0])) is Treatment.CUT:
            tensors = [tf.convert_to_tensor(value) for value in values]
            dtype, shape = tensors[0].dtype, tensors[0].shape
            for tensor in tensors:
                if tensor.dtype != dtype:
                    raise ValueError(
                        f"{where} has dtypes {dtype.name} and {tensor.dtype.name}; expected one."
                        " Correct smp_slice."
                    )
                shape = shape.most_specific_compatible_shape(tensor.shape)
            return self._input(_Input(tensors, None, tf.TensorSpec(shape, dtype), path))
        key = _key_of(values[0])
        if any(_key_of(value) != key for value in values):
            raise TypeError(
                f"{where} holds other values than tensors ({values[0]!r}, {values[1]!r}) that"
                " differ between microbatches; expected tensors, as the body is traced once for"
                " all microbatches. Return tensors, or containers of tensors, from smp_slice."
            )
        self.signature.append(key)
        return _Constant(values[0])

    def _composite(self, value: Any, path: Callable[[], str]) -> _Composite:
        spec = tf.type_spec_from_value(value)
        self.signature.append(spec)
        components = tf.nest.flatten(value, expand_composites=True)
        return _Composite(spec, [self._whole(each, each.shape, path).number for each in components])

    def _input(self, found: _Input) -> _Place:
        self.signature.append(
            (found.axis, found.spec.dtype, _shape_key(found.spec.shape), len(found.tensors))
        )
        self.inputs.append(found)
        return _Place(len(self.inputs) - 1)

    def _sign_structure(self, structure: Structure) -> None:
        self.signature.append(_structure_key(structure))


def _path(rule: Rule, structure: Structure, index: int) -> Callable[[], str]:
    """How a leaf is reached; worked out when it is asked for."""
    return lambda: structure.paths(rule.name)[index]


# ---- the signature -------------------------------------------------------------------------------


_EQUAL_BY_VALUE = (
    *(type(None), bool, int, str, bytes, type(Ellipsis), range, type),
    *(enum.Enum, tf.DType, tf.TypeSpec, np.dtype),
)


class _Same:
    """Equal to that of the same object, as long as there is the object; does not keep it."""

    __slots__ = ("_hash", "_object")

    def __init__(self, obj: Any) -> None:
        self._hash = id(obj)
        try:
            self._object: Callable[[], Any] = weakref.ref(obj)
        except TypeError:
            self._object = lambda: obj

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._object() is other._object() is not None


def _key_of(value: Any) -> Hashable:
    """Equal for values of which one trace can take the other's place."""
    cls = type(value)
    if isinstance(value, float):
        return cls, float(value).hex()  # nan is equal to itself, 0.0 is not -0.0
    if isinstance(value, complex):
        return cls, value.real.hex(), value.imag.hex()
    if isinstance(value, _EQUAL_BY_VALUE):
        return cls, value
    if isinstance(value, tf.TensorShape):
        return cls, _shape_key(value)
    if isinstance(value, slice):
        return cls, _key_of(value.start), _key_of(value.stop), _key_of(value.step)
    if isinstance(value, types.MethodType):  # a new object each time that one asks for it
        return cls, _Same(value.__self__), _Same(value.__func__)
    leaves, structure = flatten(value)
    if structure.is_leaf:
        return _Same(value)
    return _structure_key(structure), tuple(_key_of(leaf) for leaf in leaves)


def _structure_key(structure: Structure) -> Hashable:
    return structure if structure.is_exact else (structure, repr(structure))


def _shape_key(shape: tf.TensorShape) -> Hashable:
    return None if shape.rank is None else tuple(shape.as_list())
