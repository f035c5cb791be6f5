# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Doing again what made the values of delayed tensors."""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import bisect
import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from smdistributed.modelparallel.torch.delayed_initialization.sources import (
    Note,
    Source,
    View,
    drop_expired,
    is_delayed,
    plainly,
    source_of,
    tensors_in,
    view_of,
)

__all__ = ["Values", "computed", "mark_unchanged", "materialise", "replace_data"]

# Of a tensor without data, when its block ended.
_VERSION = "_smp_version"


class Values:
    """Values of delayed tensors, computed once: those that share memory get the same again."""

    def __init__(self) -> None:
        self._storages: dict[Source, torch.UntypedStorage] = {}

    def of(self, tensor: Tensor, name: str = "a parameter") -> Tensor:
        """The tensor itself, or if it is delayed one with its values, where it would be without us.

        Args:
            name: for messages.

        Raises:
            ValueError: it has no data, and nothing is known of its values.
        """
        with plainly():
            if not tensor.is_meta:
                return tensor
            source = source_of(tensor)
            if source is None:
                raise ValueError(
                    f"{name} is on the meta device, and nothing tells its values; expected one that"
                    " was made, and copied if it was, in `with smp.delay_param_initialization():`"
                    " or smp.model_creation(). Make the module there, or in CPU memory."
                )
            _warn_of_changes(tensor, name)
            if source not in self._storages:
                self._storages[source] = computed(source)
            return view_of(tensor, source).on(self._storages[source])

    def fill_attributes(self, module: nn.Module) -> None:
        """Tensors that a module keeps beside parameters and buffers, and that are delayed."""
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and is_delayed(value):
                vars(module)[name] = self.of(value, name)


def computed(source: Source) -> torch.UntypedStorage:
    """Does again what made the values, in the order of then."""
    storages: dict[Source, torch.UntypedStorage] = {}

    def real(view: View) -> Tensor:
        if view.source not in storages:
            nbytes, device = view.source.nbytes, view.source.device
            storages[view.source] = torch.UntypedStorage(nbytes, device=device)
        return view.on(storages[view.source])

    default = torch.get_default_dtype()
    try:
        for note in _needed(source):
            args, kwargs = tree_map_only(
                View, real, (note.args, note.kwargs), is_leaf=lambda each: isinstance(each, View)
            )
            torch.set_default_dtype(note.default_dtype)
            with _random_state(note.random):
                result = note.func(*args, **kwargs)
            for view, tensor in zip(note.made, tensors_in(result), strict=True):
                if view is None:
                    continue
                if (tensor.stride(), tensor.storage_offset()) == (view.stride, view.offset):
                    storages[view.source] = tensor.untyped_storage()
                else:
                    real(view).copy_(tensor)
    finally:
        torch.set_default_dtype(default)
    return real(View(source, torch.uint8, (), (), 0)).untyped_storage()


def _needed(source: Source) -> list[Note]:
    """Notes that decide its values, in their order; none of what was overwritten later."""
    found: dict[int, Note] = {}
    walked: set[tuple[Source, int]] = set()
    left = [(source, len(source.notes))]
    while left:
        each, end = left.pop()
        for index in range(end - 1, -1, -1):
            if (each, index) in walked:
                break
            walked.add((each, index))
            note = each.notes[index]
            found[note.number] = note
            left += ((read, _count_before(read, note.number)) for read in note.reads)
            if note.fills is each:
                break
    return [found[number] for number in sorted(found)]


def _count_before(source: Source, number: int) -> int:
    return bisect.bisect_left(source.notes, number, key=lambda note: note.number)


@contextlib.contextmanager
def _random_state(random: tuple[torch.Generator, Tensor] | None) -> Iterator[None]:
    if random is None:
        yield
        return
    generator, state = random
    before = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(before)


def materialise(module: nn.Module) -> None:
    """Gives all of a module its values, in memory."""
    values = Values()
    tensors = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in tensors:
        if is_delayed(tensor):
            replace_data(tensor, values.of(tensor, name))
    for part in module.modules():
        values.fill_attributes(part)
    drop_expired()


def mark_unchanged(tensor: Tensor) -> None:
    """What is done to it from now on is not seen: `Values.of` will warn of it."""
    setattr(tensor, _VERSION, tensor._version)


def replace_data(tensor: Tensor, value: Tensor) -> None:
    """As `tensor.data = value`, also from and to the meta device; the object stays the same.

    Raises:
        RuntimeError: torch's: it is to get data, or to lose it, and C++ code refers to it too.
    """
    if tensor.is_meta == value.is_meta:
        tensor.data = value
        return
    fresh = value.detach()
    if isinstance(tensor, nn.Parameter):
        fresh = torch.Tensor._make_subclass(nn.Parameter, fresh, tensor.requires_grad)
    hooks = tensor._backward_hooks
    # Not torch.utils.swap_tensors, which refuses what has weak references, as weights of an LSTM
    # have: here the other tensor is seen by nobody, and all attributes stay where they are.
    torch._C._swap_tensor_impl(tensor, fresh)
    if hooks:
        tensor._backward_hooks = hooks
    tensor.__dict__.pop(_VERSION, None)


def _warn_of_changes(tensor: Tensor, name: str) -> None:
    if getattr(tensor, _VERSION, tensor._version) != tensor._version:
        warnings.warn(
            f"{name} was changed after the block of smp.delay_param_initialization() that it was"
            " made in, while it had no data: it gets its values without that change. Change it in"
            " such a block (a new one will do), or after the model is placed, in a hook:"
            " model.register_post_partition_hook().",
            stacklevel=2,
        )
