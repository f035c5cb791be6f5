# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of the values of memory: who wrote to it, by memory.

Words as in the package's docstring.
"""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = [
    "Note",
    "Source",
    "View",
    "delayed_like",
    "drop_expired",
    "forget",
    "forget_real",
    "is_delayed",
    "numbers",
    "plainly",
    "source_of",
    "tensors_in",
    "track",
    "view_of",
]


class Source:
    """Where the values of one piece of memory come from.

    Attributes:
        device: of its values.
        nbytes: of all of it.
        notes: of operations that wrote to it, the oldest first.
        is_parameters: it belongs to a delayed parameter.
    """

    __slots__ = ("__weakref__", "device", "is_parameters", "nbytes", "notes")

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.notes: list[Note] = []
        self.is_parameters = False


class View(NamedTuple):
    """A tensor among the arguments of a note: which memory, and how it is seen."""

    source: Source
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        """The same look at other memory of that size."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)

    def is_all(self) -> bool:
        """Whether it has each element of the memory once."""
        length = 1
        for size, stride in sorted(zip(self.size, self.stride, strict=True), key=lambda p: p[1]):
            if size != 1 and stride != length:
                return False
            length *= size
        return length * self.dtype.itemsize == self.source.nbytes


class Note(NamedTuple):
    """An operation that can be done again.

    Attributes:
        number: orders all notes.
        args, kwargs: tensors are `View`s, or copies of those without a source.
        reads: the sources among them whose values matter.
        fills: the source that it sets all of, if any.
        made: by result, what is known of its memory if that is new.
        random: the generator, and its state before; None if it draws nothing.
        default_dtype: torch's, at that time.
    """

    number: int
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[Source, ...]
    fills: Source | None
    made: tuple[View | None, ...]
    random: tuple[torch.Generator, Tensor] | None
    default_dtype: torch.dtype


Sources = dict[StorageWeakRef, Source]

# By memory: of delayed tensors; and of others, for as long as a block sees what is done to them.
_of_delayed: Sources = {}
_of_real: Sources = {}
numbers = itertools.count()


def source_of(tensor: Tensor) -> Source | None:
    """What is known of its memory, if anything is."""
    is_plain = type(tensor) is Tensor or isinstance(tensor, nn.Parameter)
    if not is_plain or tensor.layout is not torch.strided:
        return None
    return _known(tensor).get(StorageWeakRef(tensor.untyped_storage()))


def _known(tensor: Tensor) -> Sources:
    return _of_delayed if tensor.is_meta else _of_real


def track(tensor: Tensor, source: Source) -> None:
    """From now on the tensor's memory is that of the source."""
    _known(tensor)[StorageWeakRef(tensor.untyped_storage())] = source


def forget(tensor: Tensor) -> None:
    """Its values can not be had again."""
    _known(tensor).pop(StorageWeakRef(tensor.untyped_storage()), None)


def view_of(tensor: Tensor, source: Source) -> View:
    """How the tensor sees its memory."""
    return View(
        source,
        tensor.dtype,
        tuple(tensor.size()),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
    )


def forget_real() -> None:
    """Of tensors with data nothing is known any more: nobody sees what is done to them."""
    _of_real.clear()


def drop_expired() -> None:
    """Forgets sources of memory that nobody refers to; notes of others keep what they need."""
    for sources in (_of_delayed, _of_real):
        for reference in [each for each in sources if each.expired()]:
            del sources[reference]


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """What this block computes is seen by no mode."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


def is_delayed(tensor: Tensor) -> bool:
    """Whether it is without data, and its values can be had."""
    with plainly():
        return tensor.is_meta and source_of(tensor) is not None


def delayed_like(value: Tensor) -> Tensor:
    """A tensor without data, and with the values of another; that itself if they are not known."""
    source = source_of(value)
    if (
        value.is_meta
        or source is None
        or source.is_parameters
        or not view_of(value, source).is_all()
    ):
        return value
    made = torch.empty_like(value, device="meta")
    track(made, source)
    source.is_parameters = True
    return made


def tensors_in(result: Any) -> list[Tensor]:
    """All tensors of a nested structure, in order."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
