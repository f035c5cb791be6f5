# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What stays the same from one call of a module to the next: told once, then named by a number."""

from __future__ import annotations

import enum
import math
import pickle
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.containers import (
    LEAF,
    Structure,
    flatten,
    is_mutable,
    stands_twice,
)
from smdistributed.modelparallel.torch.pipeline.loop.modes import Modes
from smdistributed.modelparallel.torch.pipeline.values.objects import (
    IMMUTABLE,
    is_constant,
    pack_objects,
    unpack_objects,
)

__all__ = [
    "NOTHING",
    "ONE_TENSOR",
    "CalledSignatures",
    "KnownSignatures",
    "Place",
    "Signature",
    "Template",
    "pickled_definitions",
    "signature_of",
    "without_tensors",
]


class Place(enum.Enum):
    """Stands among leaves where a tensor goes, or an object."""

    TENSOR = enum.auto()
    OBJECT = enum.auto()


class Same(NamedTuple):
    """Stands among leaves where a tensor goes that another leaf is too.

    Attributes:
        number: of the tensor, counted in order of leaves.
    """

    number: int


class Template(NamedTuple):
    """A value without its tensors.

    Attributes:
        structure: of the value.
        leaves: its leaves, `Place.TENSOR` for each tensor, `Same` where it stands again,
            `Place.OBJECT` for what may change or may hold tensors.
        objects: those, packed (objects.py).
        num_object_tensors: how many tensors are in them.
    """

    structure: Structure
    leaves: tuple[Any, ...]
    objects: bytes = b""
    num_object_tensors: int = 0

    @property
    def num_tensors(self) -> int:
        """How many tensors it takes."""
        return sum(leaf is Place.TENSOR for leaf in self.leaves) + self.num_object_tensors

    @property
    def is_plain(self) -> bool:
        """Whether it holds nothing but tensors and None, and is the same as any equal one."""
        return self.structure.is_exact and all(
            leaf is Place.TENSOR or leaf is None for leaf in self.leaves
        )

    def fill(self, tensors: Iterable[Tensor], known: Sequence[Any] = ()) -> Any:
        """The value, with tensors in their places: first those of leaves, then of objects.

        Args:
            tensors: `num_tensors` of them.
            known: as for `unpack_objects`.
        """
        following = iter(tensors)
        if self is ONE_TENSOR:
            return next(following)
        return self.structure.unflatten(_filled(self.leaves, following, self.objects, known))


def _filled(
    leaves: Sequence[Any], following: Iterator[Tensor], data: bytes, known: Sequence[Any] = ()
) -> list[Any]:
    filled = [next(following) if leaf is Place.TENSOR else leaf for leaf in leaves]
    if any(type(leaf) is Same for leaf in leaves):
        pairs = zip(filled, leaves, strict=True)
        tensors = [each for each, leaf in pairs if leaf is Place.TENSOR]
        filled = [tensors[leaf.number] if type(leaf) is Same else leaf for leaf in filled]
    if data:
        objects = iter(unpack_objects(data, list(following), known))
        filled = [next(objects) if leaf is Place.OBJECT else leaf for leaf in filled]
    return filled


def without_tensors(
    value: Any, known: Mapping[int, int] | None = None
) -> tuple[Template, list[Tensor]]:
    """A value's template, and its tensors, each once.

    Args:
        value: any.
        known: by `id`, what `fill` is given as `known`.

    Raises:
        TypeError: it cannot be pickled.
    """
    if type(value) is Tensor:
        return ONE_TENSOR, [value]
    is_known = None if known is None else lambda each: id(each) in known
    leaves, structure = flatten(value, is_known)
    if (is_known is not None and is_known(value)) or stands_twice(value):
        leaves, structure = [value], LEAF  # all of it together, so that what is one stays one
    tensors: list[Tensor] = []
    numbers: dict[int, int] = {}
    objects: list[Any] = []
    places: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if id(leaf) in numbers:
                places.append(Same(numbers[id(leaf)]))
                continue
            numbers[id(leaf)] = len(tensors)
            tensors.append(leaf)
            places.append(Place.TENSOR)
        elif is_constant(leaf):
            places.append(leaf)
        else:
            objects.append(leaf)
            places.append(Place.OBJECT)
    if not objects:
        return Template(structure, tuple(places)), tensors
    try:
        packed, inside = pack_objects(objects, known)
    except Exception as error:
        names = ", ".join(sorted({type(each).__qualname__ for each in objects}))
        raise TypeError(
            f"a value with objects of type {names} cannot go to another rank: {error}; expected"
            " tensors, plain values, containers of them, or objects that pickle takes. Return what"
            " the other ranks can have."
        ) from error
    return Template(structure, tuple(places), packed, len(inside)), [*tensors, *inside]


# What most modules return, and what most are given: arguments without names, none a container. Told
# by identity.
ONE_TENSOR = Template(flatten(0)[1], (Place.TENSOR,))
NOTHING = Template(flatten(None)[1], (None,))
_ROWS = [flatten(((0,) * length, {}))[1] for length in range(8)]


def _is_row(structure: Structure, length: int) -> bool:
    return length < len(_ROWS) and structure is _ROWS[length]


class Signature(NamedTuple):
    """A call without its tensors.

    Attributes:
        module: its number; -1 - n is function n of lazy_functions.py.
        structure: of `(args, kwargs)`.
        constants: leaf by leaf its type and itself, `Place.TENSOR`, or `Place.OBJECT`.
        modes: of torch.
        is_training: of the module at its caller; what it returns may depend on it.
        is_mutable: the arguments hold something beside tensors that can change.
        objects: the objects among the leaves, packed (objects.py).
    """

    module: int
    structure: Structure
    constants: tuple[Any, ...]
    modes: Modes
    is_training: bool
    is_mutable: bool = False
    objects: bytes = b""

    def arguments(self, tensors: Iterable[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, with tensors in their places."""
        following = iter(tensors)
        leaves = [
            next(following) if c is Place.TENSOR else c[1] if type(c) is tuple else c
            for c in self.constants
        ]
        if self.objects:
            leaves = _filled(leaves, following, self.objects)
        if _is_row(self.structure, len(leaves)):
            return tuple(leaves), {}
        args, kwargs = self.structure.unflatten(leaves)
        return args, kwargs


def signature_of(
    module: int,
    is_training: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    modes: Modes,
) -> tuple[Signature, list[Tensor], bool]:
    """The signature of a call, its tensors, and whether the signature can serve again.

    Raises:
        TypeError: an argument cannot be pickled; names its type.
    """
    leaves, structure = flatten((args, kwargs))
    tensors: list[Tensor] = []
    constants: list[Any] = []
    objects: list[Any] = []
    is_lasting = structure.is_exact
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            constants.append(Place.TENSOR)
        elif type(leaf) is float:
            # Tells 0.0 from -0.0, and one NaN is as good as another.
            constants.append((float, leaf if leaf == leaf else math.nan, leaf.hex()))
        elif type(leaf) is complex:
            constants.append((complex, leaf, leaf.real.hex(), leaf.imag.hex()))
        elif isinstance(leaf, types.FunctionType) or (
            isinstance(leaf, types.BuiltinFunctionType) and is_constant(leaf)
        ):  # a method of a list or a tensor brings that along, and is an object
            is_lasting = False
            constants.append(("function", leaf))  # its class cannot be pickled
        elif is_constant(leaf):
            is_lasting = is_lasting and type(leaf) in IMMUTABLE
            constants.append((type(leaf), leaf))
        else:
            objects.append(leaf)
            constants.append(Place.OBJECT)
    packed, inside = _pack_arguments(objects) if objects else (b"", [])
    signature = Signature(
        module,
        structure,
        tuple(constants),
        modes,
        is_training,
        bool(objects) or any(map(is_mutable, (*args, *kwargs.values()))),
        packed,
    )
    return signature, [*tensors, *inside], is_lasting and not objects


def _pack_arguments(objects: list[Any]) -> tuple[bytes, list[Tensor]]:
    try:
        return pack_objects(objects)
    except Exception as error:
        for each in objects:
            _check_picklable(each)
        raise TypeError(
            f"the arguments of a module on another rank cannot be pickled ({error}); expected"
            " tensors, plain values and containers of them."
        ) from error


# What may be looked up by type and value; not floats, as 0.0 is -0.0.
_SIMPLE = frozenset({type(None), bool, int, str, torch.dtype})


# Of a number in the arguments that is another one in each step there is no end.
_MOST = 20_000


class CalledSignatures:
    """Of the calls this rank makes: their numbers, and who has been told."""

    def __init__(self) -> None:
        self._numbers: dict[Signature, int] = {}
        # Of most calls, whose arguments are tensors and simple values: what is found quickly.
        self._by_key: dict[tuple[Any, ...], tuple[Signature, int]] = {}
        self._told: dict[int, set[int]] = {}
        self._next = 0
        self._next_once = -1

    def find(
        self,
        module: int,
        is_training: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: Modes,
    ) -> tuple[Signature, int, Sequence[Tensor], bool]:
        """Of a call: its signature and the number of that, its tensors, and whether it lasts.

        The number of one that serves once is negative.
        """
        key, tensors = _simple_key(module, is_training, args, kwargs, modes)
        known = self._by_key.get(key) if key is not None else None
        if known is not None:
            return *known, tensors, True
        signature, tensors, is_lasting = signature_of(module, is_training, args, kwargs, modes)
        number = self._number(signature, is_lasting)
        if key is not None and number >= 0:
            self._by_key[key] = signature, number
        return signature, number, tensors, is_lasting and number >= 0

    def _number(self, signature: Signature, is_lasting: bool) -> int:
        number = self._numbers.get(signature) if is_lasting else None
        if number is None and (not is_lasting or len(self._numbers) >= _MOST):
            self._next_once -= 1
            return self._next_once
        if number is None:
            number = self._numbers[signature] = self._next
            self._next += 1
        return number

    def is_untold(self, owner: int, number: int) -> bool:
        """Whether `owner` has yet to be told what the number means."""
        return number < 0 or number not in self._told.get(owner, ())

    def note_told(self, owner: int, numbers: Iterable[int]) -> None:
        """`owner` has been told. What serves once is not remembered."""
        self._told.setdefault(owner, set()).update(number for number in numbers if number >= 0)


def _simple_key(
    module: int, is_training: bool, args: tuple[Any, ...], kwargs: dict[str, Any], modes: Modes
) -> tuple[tuple[Any, ...] | None, Sequence[Tensor]]:
    """What finds a call's signature, if the arguments are simple; and its tensors."""
    key: list[Any] = [module, is_training, modes, len(args), *kwargs]
    tensors = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            tensors.append(value)
            key.append(Place.TENSOR)
        elif type(value) in _SIMPLE:
            key += (type(value), value)
        else:
            return None, ()
    return tuple(key), tensors


class KnownSignatures:
    """Of the calls that others make here."""

    def __init__(self) -> None:
        self._by_number: dict[tuple[int, int], Signature] = {}

    def learn(self, caller: int, definitions: dict[int, Signature]) -> None:
        """What numbers of `caller` mean."""
        for number, signature in definitions.items():
            length = len(signature.constants)
            if length < len(_ROWS) and signature.structure == _ROWS[length]:
                signature = signature._replace(structure=_ROWS[length])
            self._by_number[caller, number] = signature

    def forget_single(self) -> None:
        """Those that serve once, of calls that did not run; the step is over."""
        for key in [key for key in self._by_number if key[1] < 0]:
            del self._by_number[key]

    def get(self, caller: int, number: int) -> Signature:
        """The signature that `caller` calls by a number."""
        if number < 0:
            return self._by_number.pop((caller, number))
        return self._by_number[caller, number]


def pickled_definitions(definitions: dict[int, Signature]) -> bytes:
    """As a Call carries them; empty if there are none.

    Raises:
        TypeError: an argument cannot be pickled; names its type.
    """
    if not definitions:
        return b""
    try:
        return pickle.dumps(definitions, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        for signature in definitions.values():
            for constant in signature.constants:
                if type(constant) is tuple:
                    _check_picklable(constant[1])
        raise TypeError(
            f"the arguments of a module on another rank cannot be pickled ({error}); expected"
            " tensors, plain values and containers of them."
        ) from error


def _check_picklable(value: Any) -> None:
    try:
        pack_objects(value)
    except Exception as error:
        raise TypeError(
            f"an argument of type {type(value).__qualname__} goes to a module on another rank, but"
            f" cannot be pickled ({error}); expected tensors, plain values, containers of them, or"
            " an object that pickle takes. Make the object where it is used, or put both modules"
            " on one partition."
        ) from error
