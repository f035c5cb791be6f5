# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs something in the forward pass without keeping what it computes, and again in the backward.

By torch's own checkpoint, which keeps random state and autocast. It knows no default dtype, which
here belongs to a microbatch, and would have buffers updated twice.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.containers import flatten
from smdistributed.modelparallel.torch.modules.buffers import kept_buffers
from smdistributed.modelparallel.torch.pipeline.changes.changed_arguments import (
    is_any_changed,
    tensors_watched,
)
from smdistributed.modelparallel.torch.pipeline.loop.modes import applied, current_modes
from smdistributed.modelparallel.torch.pipeline.values.deferred import arrived, force_arguments
from smdistributed.modelparallel.torch.pipeline.values.objects import (
    is_constant,
    pack_objects,
    unpack_objects,
)
from smdistributed.modelparallel.torch.recompute.offloading import offloaded_inputs

__all__ = ["in_a_row", "recomputed"]


def recomputed(
    function: Callable[..., Any],
    modules: Iterable[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
) -> Any:
    """What `function(*args, **kwargs)` returns, with a graph that keeps its arguments only.

    Args:
        function: computes on this rank alone. It is called again when the backward pass first needs
            what it has computed: in the same modes, and with the same random numbers.
        modules: whose buffers it may change, which the second call does not.
        args, kwargs: anything. What the function changes in containers and objects, it does once.
        preserve_rng_state: False saves the random state's few KiB, if nothing is random.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    args, kwargs = force_arguments(args, kwargs)
    tensors, together = _apart(args, kwargs)
    modes = current_modes()
    parts = [part for module in modules for part in module.modules()]
    first: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(args, kwargs)]

    def run(*saved: Tensor) -> Any:
        if first:  # and lets go of them: they may be kept elsewhere
            args, kwargs = first.pop()
            before = tensors_watched(tensors)
            result = function(*args, **kwargs)
            if is_any_changed(tensors, before):
                _warn_of_change(modules)
            return result
        args, kwargs = together(saved)
        with applied(modes), kept_buffers(part for part in parts if part.training):
            return function(*args, **kwargs)

    with offloaded_inputs():
        return checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=preserve_rng_state)


@functools.cache
def _warn_of_change_in(name: str) -> None:
    get_logger().warning(
        "%s changes a tensor in its arguments in place, and is checkpointed: it will be computed"
        " again from the changed one. That is right only where twice is the same as once, as of a"
        " ReLU. Change a copy instead, x.clone(), or do not checkpoint it.",
        name,
    )


def _warn_of_change(modules: Iterable[nn.Module]) -> None:
    _warn_of_change_in(", ".join(type(module).__name__ for module in modules))


def in_a_row(modules: Iterable[nn.Module], /, *args: Any, **kwargs: Any) -> Any:
    """What the last of the modules returns; each but the first gets what the one before returns."""
    for module in modules:
        args, kwargs = (module(*args, **kwargs),), {}
    return args[0]


class _Number(NamedTuple):
    value: int


class _Object(enum.Enum):
    """Stands where the next object goes."""

    NEXT = enum.auto()


def _packed(objects: list[Any]) -> tuple[bytes, list[Tensor]]:
    """What they are now: the first call may change them. What cannot be packed stays shared."""
    try:
        return pack_objects(objects) if objects else (b"", [])
    except Exception:
        return b"", []


def _apart(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]]:
    """The tensors of a call, and what makes its arguments of them, in new containers.

    A tensor that is passed twice is there once, and then is one object again: modules ask for that,
    such as attention of its query, key and value. Parameters stay what they are.
    """
    leaves, structure = flatten((args, kwargs))
    objects = [leaf for leaf in leaves if not isinstance(leaf, Tensor) and not is_constant(leaf)]
    packed, inside = _packed(objects)
    tensors: list[Tensor] = []
    numbers: dict[int, _Number] = {}

    def number_of(tensor: Tensor) -> _Number:
        tensor = arrived(tensor)
        if id(tensor) not in numbers:
            numbers[id(tensor)] = _Number(len(tensors))
            tensors.append(tensor)
        return numbers[id(tensor)]

    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter):
            leaves[index] = number_of(leaf)
        elif packed and not isinstance(leaf, Tensor) and not is_constant(leaf):
            leaves[index] = _Object.NEXT
    held = [number_of(tensor) for tensor in inside]

    def together(saved: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made = iter(unpack_objects(packed, [saved[n.value] for n in held]) if packed else ())
        args, kwargs = structure.unflatten(
            [
                saved[leaf.value]
                if type(leaf) is _Number
                else next(made)
                if leaf is _Object.NEXT
                else leaf
                for leaf in leaves
            ]
        )
        return args, kwargs

    # What is of inference mode cannot be kept.
    return [tensor.clone() if tensor.is_inference() else tensor for tensor in tensors], together
