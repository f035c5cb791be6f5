# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that are no containers, on their way to another rank: pickled, but for their tensors.

Tensors inside them travel as all others do. So gradients flow through them, and a tensor that is
also passed by itself stays the same tensor.
"""

from __future__ import annotations

import enum
import io
import pickle
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred

__all__ = ["IMMUTABLE", "is_constant", "pack_objects", "unpack_objects"]

# Values that cannot change behind our back, so that a pickle made earlier still says what they are.
IMMUTABLE = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        torch.device,
        torch.dtype,
        torch.Size,
        type(Ellipsis),
    }
)
# Of these it is known that there is nothing in them that could change.
_CONSTANT = (enum.Enum, type, types.FunctionType, slice, range)
_PLAIN = tuple(IMMUTABLE)


def is_constant(value: Any) -> bool:
    """Whether a value holds no tensor, and nobody can change what is in it."""
    if type(value) in IMMUTABLE or isinstance(value, _CONSTANT):
        return True
    if isinstance(value, types.BuiltinFunctionType):  # or a method, such as that of a list
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    return isinstance(value, _PLAIN) and not getattr(value, "__dict__", None)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Mapping[int, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known
        self._places: dict[int, int] = {}
        self.tensors: list[Tensor] = []

    def persistent_id(self, obj: Any) -> tuple[bool, int] | None:
        known = self._known.get(id(obj))
        if known is not None:
            return True, known
        if isinstance(obj, Tensor) and (type(obj) is Deferred or obj.layout is torch.strided):
            place = self._places.get(id(obj))
            if place is None:
                place = self._places[id(obj)] = len(self.tensors)
                self.tensors.append(obj)
            return False, place
        return None


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: Sequence[Tensor], known: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._sources = tensors, known

    def persistent_load(self, pid: tuple[bool, int]) -> Any:
        is_known, place = pid
        return self._sources[is_known][place]


def pack_objects(obj: Any, known: Mapping[int, int] | None = None) -> tuple[bytes, list[Tensor]]:
    """An object as bytes, and the tensors inside it.

    Args:
        obj: anything that can be pickled.
        known: by `id`, what the other rank has too: it travels as a number.

    Raises:
        Exception: it cannot be pickled.
    """
    file = io.BytesIO()
    packer = _Packer(file, known or {})
    packer.dump(obj)
    return file.getvalue(), packer.tensors


def unpack_objects(data: bytes, tensors: Sequence[Tensor], known: Sequence[Any] = ()) -> Any:
    """The inverse of `pack_objects`.

    Args:
        data: pickled, by a rank that has proved the job's token.
        tensors: what goes in the places of the tensors.
        known: by number, what this rank has already.
    """
    return _Unpacker(data, tensors, known).load()
