# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Devices: what a model is called with goes to where the model is.

Source: modelparallel specification, sections 3.3 and 8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from smdistributed.modelparallel.torch.containers import flatten
from smdistributed.modelparallel.torch.modules.placement import is_absent
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred

__all__ = ["arguments_on"]


def arguments_on(
    device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with their tensors on a device, by `Tensor.to`.

    So a tensor that is there stays the same object, and gradients find their way back. So does an
    argument of which nothing is moved; other containers are new ones.

    Args:
        device: where the called model is.
        args, kwargs: anything; tensors also in the containers of `structures`. Sizes of a
            `PackedSequence` stay in CPU memory, and so do stand-ins for parameters of other ranks.
    """
    return (
        tuple([_moved(value, device) for value in args]),
        {name: _moved(value, device) for name, value in kwargs.items()},
    )


def _moved(value: Any, device: torch.device) -> Any:
    leaves, structure = flatten(value, _moves_by_itself)
    moved = [_leaf_on(leaf, device) for leaf in leaves]
    if all(one is other for one, other in zip(leaves, moved, strict=True)):
        return value
    return structure.unflatten(moved)


def _moves_by_itself(container: Any) -> bool:
    return isinstance(container, PackedSequence)


def _leaf_on(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, PackedSequence):
        packed: Any = leaf  # its overloads leave devices out
        return leaf if leaf.data.device == device else packed.to(device)
    if not isinstance(leaf, Tensor) or type(leaf) is Deferred:  # that comes to the device anyway
        return leaf
    if isinstance(leaf, nn.Parameter) and is_absent(leaf):
        return leaf  # it stands for one on another rank, by its identity
    return leaf.to(device)
