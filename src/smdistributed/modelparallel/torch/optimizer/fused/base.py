# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers have in common: lists of what is to be updated, precision of states.

As in Apex, steps are counted by group, under the key `step`: schedulers and scripts of Apex's time
read it there. Everything else of the state is of a parameter, so `smp.DistributedOptimizer` can
gather it from the ranks.

Unlike in Apex, states of 16-bit parameters are float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused.batches import (
    arithmetic_dtype,
    empty_like_work,
)

__all__ = ["FusedOptimizer"]


class FusedOptimizer(torch.optim.Optimizer):
    """Updates lists of parameters at a time; derived classes say how, in `_update`.

    Args:
        set_grad_none: False: `zero_grad` never lets go of gradients, it fills them with zeros.
        amsgrad: must be False.

    Attributes:
        _attributes: names of those that a copy has too.

    Raises:
        RuntimeError: `amsgrad`.
        ValueError: an option that no update can be made with.
    """

    _attributes: tuple[str, ...] = ("set_grad_none",)

    def __init__(
        self, params: Any, defaults: dict[str, Any], *, set_grad_none: bool, amsgrad: bool
    ) -> None:
        if amsgrad:
            raise RuntimeError(
                f"{type(self).__name__} was made with amsgrad=True; expected False, as it has no"
                " AMSGrad variant. Leave it out, or use torch.optim.AdamW(amsgrad=True)."
            )
        self.set_grad_none = set_grad_none
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: also what torch's leaves out."""
        own = {name: vars(self)[name] for name in self._attributes}
        return {**super().__getstate__(), **own}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, with a look at the options."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for name, least, less_than in (
            ("lr", 0.0, None),
            ("eps", 0.0, None),
            ("weight_decay", 0.0, None),
            ("betas", 0.0, 1.0),
        ):
            values = group[name] if name == "betas" else (group[name],)
            for value in values:
                if not (value >= least and (less_than is None or value < less_than)):
                    bound = "" if less_than is None else f" and less than {less_than:g}"
                    raise ValueError(
                        f"{type(self).__name__}: {name} is {group[name]}; expected {least:g} or"
                        f" more{bound}. Correct it."
                    )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Lets go of gradients; fills them with zeros if this or `set_grad_none` is False."""
        super().zero_grad(set_to_none=set_to_none and self.set_grad_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient.

        Args:
            closure: computes the loss and gradients anew.

        Returns: what the closure returns, or None.

        Raises:
            RuntimeError: parameters that are not real floats of 16 to 64 bits; sparse gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        of_groups = [self._with_gradients(group) for group in self.param_groups]
        self._begin_step()
        for group, lists in zip(self.param_groups, of_groups, strict=True):
            group["step"] = group.get("step", 0) + 1
            for parameters in lists:
                self._update(group, parameters)
        return loss

    def _begin_step(self) -> None:
        """Before the first update of a step."""

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Of one device and one dtype to compute with; all have elements and a gradient."""
        raise NotImplementedError

    def _with_gradients(self, group: dict[str, Any]) -> list[list[Tensor]]:
        """What there is to update, by device and dtype."""
        lists: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            self._check(parameter, gradient)
            if parameter not in self.state:
                self.state[parameter] = self._initial_state(group, parameter)
            if parameter.numel():
                lists[parameter.device, arithmetic_dtype(parameter.dtype)].append(parameter)
        return list(lists.values())

    def _initial_state(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
        """Of a parameter that is about to be updated for the first time."""
        return {key: empty_like_work(parameter).zero_() for key in ("exp_avg", "exp_avg_sq")}

    def _check(self, parameter: Tensor, gradient: Tensor) -> None:
        if gradient.layout is not torch.strided:
            raise RuntimeError(
                f"{type(self).__name__} got a gradient with layout {gradient.layout}; expected a"
                " dense one. Make the layer with sparse=False, or give its parameters to"
                " torch.optim.SparseAdam."
            )
        if not parameter.is_floating_point() or parameter.itemsize < 2:
            raise RuntimeError(
                f"{type(self).__name__} got a parameter of {parameter.dtype}; expected float16,"
                " bfloat16, float32 or float64. Leave it out, or convert it."
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but states of 16-bit parameters keep their precision."""
        super().load_state_dict(state_dict)
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        loaded = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(saved, loaded, strict=True):
            dtype = arithmetic_dtype(parameter.dtype)
            if dtype is parameter.dtype or index not in state_dict["state"]:
                continue
            for key, value in state_dict["state"][index].items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    self.state[parameter][key] = value.to(parameter.device, dtype)

    def _states(self, parameters: Sequence[Tensor], key: str) -> list[Tensor]:
        return [self.state[parameter][key] for parameter in parameters]
