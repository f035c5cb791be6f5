# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine needs of the arrays of a collective: addresses, counts, one element type.

A collective takes one part of memory per rank either as a list of arrays or as one array that is
cut. Both come out of here as addresses and numbers of elements, by rank, after the checks that
concern this rank alone; what concerns all ranks is for the engine to compare. The addresses
are good for as long as the caller holds the arrays, with `Held`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from smdistributed.collectives import _native

__all__ = [
    "Array",
    "Held",
    "Parts",
    "cut",
    "list_parts",
    "require_count",
    "require_dtype",
    "root_parts",
]

# A contiguous array in CPU memory: NumPy, DLPack or the buffer protocol.
Array = Any

_ELEMENT_BYTES = [_native.element_bytes(code) for code in range(len(_native.dtype_names()))]


class Held:
    """The arrays of one call: their memory stays where it is until the call, or its `Work`, ends.

    A context; what is left of it has failed, or is complete if it blocks. Then the memory is the
    caller's again at once: a traceback would keep it else, and an `except` could not close what the
    arrays lie in.

    Args:
        arrays: one, or a tuple of arrays and lists of arrays.
        is_async: whether the call returns before it is complete. What has begun holds them itself.

    Attributes:
        arrays: what stands for them, `_native.hold(arrays)`.
    """

    __slots__ = ("_has_begun", "_is_async", "arrays")

    def __init__(self, arrays: Any, is_async: bool) -> None:
        self.arrays = arrays
        self._is_async = is_async
        self._has_begun = False

    def __enter__(self) -> Self:
        self.arrays = _native.hold(self.arrays)
        return self

    def begins(self) -> Self:
        """The engine gets them now. A signal may raise here and later, on top of what has begun."""
        self._has_begun = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_async or (kind is not None and not self._has_begun):
            self._let_go()

    def _let_go(self) -> None:  # also called by the engine, if it refuses what should begin
        _release(self.arrays, _LISTS_OF_ARRAYS)


# How deep `_native.hold` looks: a tuple of lists of arrays. What lies deeper is the caller's.
_LISTS_OF_ARRAYS = 2


def _release(held: Any, depth: int) -> None:
    if isinstance(held, memoryview):
        held.release()
    elif isinstance(held, tuple) and depth > 0:
        for each in held:
            _release(each, depth - 1)


class Parts(NamedTuple):
    """One part of memory per rank.

    Attributes:
        pointers: address of each rank's part, by rank.
        counts: elements of each rank's part, by rank.
        dtype: the engine's code of the element type, one for all parts.
    """

    pointers: list[int]
    counts: list[int]
    dtype: int


def list_parts(
    collective: str, arrays: Sequence[Array], world_size: int, dtype: int, *, writable: bool
) -> Parts:
    """Take a list of one array per rank; their sizes may differ.

    Args:
        collective: name of the call, for messages.
        arrays: by rank.
        world_size: number of ranks.
        dtype: code of the element type that all must have.
        writable: whether the engine writes into them.

    Raises:
        ValueError: another number of arrays, another element type, or an array that cannot be used.
    """
    if len(arrays) != world_size:
        raise ValueError(
            f"{collective}: a list of {len(arrays)} arrays was given; expected one per rank, "
            f"{world_size}. Give each rank one, if need be an empty one."
        )
    pointers, counts = [], []
    for array in arrays:
        pointer, count, part_dtype = _native.buffer(array, writable)
        require_dtype(collective, dtype, part_dtype)
        pointers.append(pointer)
        counts.append(count)
    return Parts(pointers, counts, dtype)


def cut(
    name: str,
    array: Array | Sequence[Array],
    splits: Sequence[int] | None,
    world_size: int,
    *,
    writable: bool,
) -> Parts:
    """Cut one array into a part per rank; a list of one array per rank is taken as it is.

    Args:
        name: of the argument, for messages.
        array: to be cut, or a list.
        splits: elements of each part, by rank; None for equal parts. Not looked at for a list.
        world_size: number of ranks.
        writable: whether the engine writes into it.

    Raises:
        ValueError: the splits do not fit the array, or an array cannot be used.
    """
    if isinstance(array, (list, tuple)):
        dtype = _native.buffer(array[0])[2] if array else _native.FLOAT32
        return list_parts(name, array, world_size, dtype, writable=writable)
    pointer, count, dtype = _native.buffer(array, writable)
    if splits is None:
        if count % world_size != 0:
            raise ValueError(
                f"{name} has {count} elements, which {world_size} ranks cannot share "
                f"equally; expected a multiple of {world_size}. Pass {name}_splits."
            )
        splits = [count // world_size] * world_size
    if len(splits) != world_size or min(splits) < 0 or sum(splits) != count:
        raise ValueError(
            f"{name}_splits={list(splits)} does not cut {count} elements for "
            f"{world_size} ranks; expected {world_size} sizes >= 0 that sum to {count}."
        )
    size = _ELEMENT_BYTES[dtype]
    pointers = []
    for split in splits:
        pointers.append(pointer)
        pointer += split * size
    return Parts(pointers, list(splits), dtype)


def root_parts(
    collective: str,
    which: str,
    array: Array | Sequence[Array] | None,
    world_size: int,
    dtype: int,
    *,
    is_root: bool,
    writable: bool,
) -> Parts:
    """Take what only the root of a gather or scatter passes: one array in equal parts, or a list.

    Args:
        collective: name of the call, for messages.
        which: name of the argument.
        array: the root's; what others pass is not looked at.
        world_size: number of ranks.
        dtype: code of the element type that it must have.
        is_root: whether this rank is the root.
        writable: whether the engine writes into it.

    Returns:
        The parts; none on the other ranks.

    Raises:
        ValueError: it is None, has another element type, or cannot be cut or used.
    """
    if not is_root:
        return Parts([], [], dtype)
    if array is None:
        raise ValueError(
            f"{collective}: {which}=None on the root; expected an array or a list of one array per "
            "rank. Pass it on the rank that is the root; the others may pass None."
        )
    parts = cut(which, array, None, world_size, writable=writable)
    require_dtype(collective, dtype, parts.dtype)
    return parts


def require_dtype(collective: str, expected: int, given: int) -> None:
    """Raise `ValueError` unless the codes of two element types are equal."""
    if given != expected:
        raise ValueError(
            f"{collective}: input and output have different element types; expected one type. "
            "Convert one of them."
        )


def require_count(collective: str, which: str, given: int, expected: int) -> None:
    """Raise `ValueError` unless an argument has the number of elements that it must have."""
    if given != expected:
        raise ValueError(
            f"{collective}: the {which} has {given} elements; expected {expected} beside the "
            "other argument. Change one of the two."
        )
