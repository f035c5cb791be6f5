# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A model whose parts are on several ranks: what of it is here.

Parameters and buffers stay the objects they were, so that an optimizer or a list made before stays
valid; what is elsewhere has its data replaced by one element that is shown at every place. Its
shape and dtype are right, it takes no memory, writing to it raises, and what reads it gets NaN.

Source: modelparallel specification, sections 3.1, 3.8 and 3.10.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.delayed_initialization import (
    Values,
    drop_expired,
    plainly,
    replace_data,
)
from smdistributed.modelparallel.torch.modules.assignment import Decision, module_paths

__all__ = ["Placement", "absent_like", "holds_anything", "is_absent"]


class Placement:
    """Where each module, parameter and buffer of a model is, and which of them are here.

    Args:
        model: the whole model, as every rank has built it.
        decision: has all its modules.
        pp_rank: of this rank.

    Attributes:
        partition_of_module: by module.
        partition_of: of parameters and buffers, by the first name that the model has for each.
    """

    def __init__(self, model: nn.Module, decision: Decision, pp_rank: int) -> None:
        self.model = model
        self.pp_rank = pp_rank
        self.decision = decision
        paths = module_paths(model)
        self.modules = list(paths)
        self.paths = list(paths.values())
        self.partition_of_module: dict[nn.Module, int] = {
            module: decision.partition_of[path] for module, path in paths.items()
        }
        # Whoever holds nothing is run by whoever calls it.
        self.owners = {
            module: place
            for module, place in self.partition_of_module.items()
            if module is model or holds_anything(module)
        }
        self.partition_of: dict[str, int] = {}
        homes: dict[int, tuple[str, int]] = {}
        for prefix, module in model.named_modules():
            place = self.partition_of_module[module]
            for name, tensor in _own(module):
                full = f"{prefix}.{name}" if prefix else name
                known = homes.setdefault(id(tensor), (full, place))
                if known[1] != place:
                    raise ConfigError(
                        f"{known[0]} and {full} are one parameter, but in partitions {known[1]} and"
                        f" {place}; expected modules that share to be in one partition. Assign them"
                        " to the same one."
                    )
                if known[0] == full:
                    self.partition_of[full] = place

    def is_here(self, name: str) -> bool:
        """Of a parameter or buffer, by its first name; also of one made since, as by a forward."""
        place = self.partition_of.get(name)
        return (self._nearest(name.rpartition(".")[0]) if place is None else place) == self.pp_rank

    def is_module_here(self, module: nn.Module) -> bool:
        """Whether this rank's partition has the module."""
        place = self.partition_of_module.get(module)
        if place is None:  # made since
            names = (name for name, each in self.model.named_modules() if each is module)
            place = self._nearest(next(names, ""))
        return place == self.pp_rank

    def _nearest(self, name: str) -> int:
        """Of a module made since: the partition of the nearest one that it is in."""
        while name:
            place = self.partition_of_module.get(self.model.get_submodule(name))
            if place is not None:
                return place
            name = name.rpartition(".")[0]
        return self.partition_of_module[self.model]

    def apply(self, device: torch.device) -> None:
        """Moves what is here to the device, and lets go of the rest.

        What is delayed gets its values here, a tensor at a time.

        Raises:
            ValueError: a tensor on the meta device, of which nothing tells its values.
        """
        with plainly():
            self._apply(device)
        drop_expired()

    def _apply(self, device: torch.device) -> None:
        values = Values()
        for name, tensor in _named_tensors(self.model):
            here = self.is_here(name)
            if here:
                is_there = tensor.device == device
                value = tensor if is_there else values.of(tensor, name).to(device)
                replace_data(tensor, value.detach())
            else:
                replace_data(tensor, absent_like(tensor))
            if device.type != "cpu":
                values = Values()  # or it would keep what was copied from here
            if not here:
                tensor.grad = None
                if tensor.requires_grad:  # else nothing tells of its use but NaN
                    watched: Any = tensor
                    watched.register_hook(self._refusal(name, tensor))
        for _, module in self.local_modules():
            values.fill_attributes(module)
        for module in self.owners:
            if self.is_module_here(module) or _refuse_to_run in module._forward_pre_hooks.values():
                continue
            if isinstance(module, torch.jit.ScriptModule):
                continue  # it takes no hooks; and it is one block, which runs on one rank
            # Calls of the module itself go to its rank and never come here; those of a copy do.
            module.register_forward_pre_hook(_refuse_to_run)

    def _refusal(self, name: str, tensor: Tensor) -> Callable[[Tensor], None]:
        place, here = self.partition_of[name], self.pp_rank
        reference = weakref.ref(tensor)

        def refuse(_: Tensor) -> None:
            used = reference()
            if used is None or used.untyped_storage().nbytes() > used.element_size():
                return  # it has been brought here since
            raise RuntimeError(
                f"parameter {name} is on partition {place}, but a module on partition {here} has"
                " computed with it; expected each module to use its own. Assign both modules to one"
                " partition, or let auto_partition do so."
            )

        return refuse

    def local_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """With their names."""
        for name, module in self.model.named_modules():
            if self.is_module_here(module):
                yield name, module

    def local_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """With their names."""
        for name, parameter in self.model.named_parameters():
            if self.is_here(name):
                yield name, parameter

    def local_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """With their names."""
        for name, buffer in self.model.named_buffers():
            if self.is_here(name):
                yield name, buffer


def _refuse_to_run(module: nn.Module, _: Any) -> None:
    """Is copied with the module, so that no copy computes with what stands for absent values."""
    if any(_is_nothing(tensor) for _, tensor in _own(module)):
        raise RuntimeError(
            f"a {type(module).__name__} was called whose parameters are on another rank, and NaN"
            " here. It is a copy of a part of smp.DistributedModel, or has outlived that model;"
            " expected calls of the model itself, in a step. To evaluate averages of weights, load"
            " them into the model: the guide has an example, under 'Averages of weights'."
        )


def _is_nothing(tensor: Tensor) -> bool:
    """Also of a copy, which has memory of its own."""
    if is_absent(tensor):
        return True
    return tensor.is_floating_point() and tensor.numel() > 1 and bool(tensor.isnan().all())


def absent_like(tensor: Tensor) -> Tensor:
    """What stands for a tensor that is on another rank."""
    value: Any = float("nan")
    if not (tensor.is_floating_point() or tensor.is_complex()):  # what no script can take for data
        is_bool = tensor.dtype is torch.bool
        limits = None if is_bool else torch.iinfo(tensor.dtype)
        value = False if limits is None else limits.min or limits.max
    return torch.full((), value, dtype=tensor.dtype).expand(tensor.shape)


def is_absent(tensor: Tensor) -> bool:
    """Whether a parameter or buffer of the model is such a stand-in.

    One element shown at several places is; tensors of no or one element cannot be told apart.
    """
    is_plain = tensor.layout is torch.strided
    return is_plain and tensor.numel() > 1 and not any(tensor.stride())


def holds_anything(module: nn.Module) -> bool:
    """Whether the module, or one below it, has a parameter or buffer."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    held: Mapping[str, Tensor | None] = {**module._parameters, **module._buffers}
    for name, tensor in held.items():
        if tensor is not None:
            yield name, tensor


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
