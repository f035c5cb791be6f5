# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The fp32 copies of 16-bit parameters that an optimizer updates.

An update is often too small to change a 16-bit number; in the copy, the master, it adds up.

Words: a *pair* is a 16-bit parameter of this rank and its master. In the optimizer's groups the
master stands where the parameter stood, so indices stay what they were. What is on another rank, is
frozen, or is in fp32 already, stands there itself.

Source: modelparallel specification, section 6.7.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Masters", "Pair", "model_parameter_of"]

_SOURCE = "_smp_master_of"


def model_parameter_of(parameter: Tensor) -> Tensor:
    """Of a master the parameter that it is a copy of; any other parameter is its own."""
    source: Tensor = getattr(parameter, _SOURCE, parameter)
    return source


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A parameter of the model in 16 bits, and its fp32 copy; on one device."""

    parameter: Tensor
    master: nn.Parameter


class Masters:
    """Of one optimizer.

    Args:
        optimizer: torch's, or like it.

    Attributes:
        pairs: in the order of the optimizer's groups, as they were made.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.pairs: list[Pair] = []

    def make(self, elsewhere: Collection[int]) -> None:
        """Makes those that are missing, of parameters that are trained here.

        Args:
            elsewhere: `id`s of parameters on other ranks.
        """
        for group in self._optimizer.param_groups:
            parameters = group["params"]
            for index, parameter in enumerate(parameters):
                if _needs_master(parameter) and id(parameter) not in elsewhere:
                    parameters[index] = self._made(parameter)

    def _made(self, parameter: Tensor) -> nn.Parameter:
        master = nn.Parameter(parameter.detach().float())
        setattr(master, _SOURCE, parameter)
        self.pairs.append(Pair(parameter, master))
        states = getattr(self._optimizer, "state", None)
        if isinstance(states, dict) and parameter in states:  # steps were made before
            states[master] = {key: _wide(value) for key, value in states.pop(parameter).items()}
        return master

    def in_groups(self) -> list[list[nn.Parameter]]:
        """By group of the optimizer."""
        return [
            [each for each in group["params"] if model_parameter_of(each) is not each]
            for group in self._optimizer.param_groups
        ]

    def updated(self) -> list[Tensor]:
        """What the optimizer updates: masters, and parameters that are not in 16 bits."""
        return [
            parameter
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.dtype not in _SIXTEEN
        ]

    @torch.no_grad()
    def update_gradients(self, scale: float) -> bool:
        """Gives masters the gradients of their parameters, and divides all by the loss scale.

        Gradients of fp32 parameters are divided where they are.

        Returns: whether any of this rank is infinite or NaN.
        """
        given: list[Tensor] = []
        taken: list[Tensor] = []
        for pair in self.pairs:
            gradient, master = pair.parameter.grad, pair.master
            if gradient is None:
                master.grad = None
            elif gradient.layout is torch.strided:
                if master.grad is None or master.grad.layout is not torch.strided:
                    master.grad = torch.empty_like(master)
                given.append(gradient)
                taken.append(master.grad)
            else:
                master.grad = gradient.float()
        if taken:
            torch._foreach_copy_(taken, given)
        return _divide(self.updated(), scale)

    @torch.no_grad()
    def to_parameters(self) -> None:
        """Parameters become their masters, rounded."""
        if self.pairs:
            masters: list[Tensor] = [pair.master for pair in self.pairs]
            torch._foreach_copy_([pair.parameter for pair in self.pairs], masters)

    @torch.no_grad()
    def from_parameters(self) -> None:
        """Masters become their parameters."""
        if self.pairs:
            parameters = [pair.parameter for pair in self.pairs]
            masters: list[Tensor] = [pair.master for pair in self.pairs]
            torch._foreach_copy_(masters, parameters)

    @torch.no_grad()
    def refresh(self) -> None:
        """Masters become their parameters where they are no longer what these were rounded from."""
        for pair in self.pairs:
            if not torch.equal(pair.master.to(pair.parameter.dtype), pair.parameter):
                pair.master.copy_(pair.parameter)

    def named(self, names: Mapping[int, str]) -> dict[str, Tensor]:
        """Masters, by the names of their parameters; the memory is that of the masters.

        Args:
            names: by `id` of a parameter; others are named by their place in the groups.
        """
        return {
            names.get(id(model_parameter_of(each)), f"param_groups.{group_number}.{number}"): (
                each.detach()
            )
            for group_number, group in enumerate(self._optimizer.param_groups)
            for number, each in enumerate(group["params"])
            if model_parameter_of(each) is not each
        }

    def load(self, values: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
        """Takes what `named` gave, of this rank's parameters; more may be in it.

        Raises:
            ValueError: one is missing, or has another shape; then nothing is taken.
        """
        named = self.named(names)
        missing = [name for name in named if name not in values]
        if missing:
            raise ValueError(
                f"the state has no fp32 weights of {_listed(missing)}; expected those of every"
                " 16-bit parameter that is trained. Load a state that was saved with the same"
                " parameters in 16 bits and trainable, or call optimizer.reload_model_params()"
                " instead, to go on from the rounded ones."
            )
        wrong = [name for name, master in named.items() if values[name].shape != master.shape]
        if wrong:
            raise ValueError(
                f"the fp32 weights of {_listed(wrong)} have another shape in the state, as"
                f" {tuple(values[wrong[0]].shape)} instead of {tuple(named[wrong[0]].shape)};"
                " expected those of this model. Load a state of the same model."
            )
        for name, master in named.items():
            master.copy_(values[name])


_SIXTEEN = (torch.float16, torch.bfloat16)


def _needs_master(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.dtype in _SIXTEEN


def _wide(value: Any) -> Any:
    is_narrow = isinstance(value, Tensor) and value.dtype in _SIXTEEN
    return value.float() if is_narrow else value


def _divide(parameters: Iterable[Tensor], scale: float) -> bool:
    """Gradients in place; whether any is infinite or NaN. One pass, one look at each device."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.layout is torch.sparse_coo:
            parameter.grad = parameter.grad.coalesce()  # else one entry may be in it twice
        values = parameter.grad
        if values.layout is not torch.strided:
            values = values.values()
        if values.is_complex():
            values = torch.view_as_real(values)
        alike.setdefault((values.device, values.dtype), []).append(values)
    found = []
    for (device, _), tensors in alike.items():
        # Whatever the default dtype is: the function wants these two in fp32.
        found.append(torch.zeros((), dtype=torch.float32, device=device))
        inverse = torch.tensor(1.0 / scale, dtype=torch.float32, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found[-1], inverse)
    return any(bool(each) for each in found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
