# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers share: lists of the tensors to update, and the precision of states.

The formulas of the derived classes say:

    g, p, m, v   gradient, parameter, first and second moment
    b1, b2       betas; b3 = 1 - b1 with grad_averaging, else 1
    c1, c2       bias corrections: 1 - b1^t and 1 - b2^t in step t, or 1

Their source is Apex's documentation of the optimizers, and the papers that it names.

As in Apex, steps are counted by group, under the key `step`: schedulers and scripts written for
Apex read it there. All other state belongs to a parameter, so `smp.DistributedOptimizer` can gather
it from the ranks.

Unlike in Apex, states of 16-bit parameters are float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused.batches import (
    arithmetic_dtype,
    empty_like_work,
    in_batches,
)

__all__ = ["FusedOptimizer", "Tensors"]

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


class FusedOptimizer(torch.optim.Optimizer):
    """Updates lists of parameters at a time, by the `_update` of the derived class.

    Args:
        set_grad_none: False: `zero_grad` fills gradients with zeros and never frees them.
        amsgrad: must be False.

    Attributes:
        _attributes: names of the attributes that a copy keeps.
        _moments: keys of the states that have the shape of their parameter.

    Raises:
        RuntimeError: `amsgrad`.
        ValueError: an option is out of range.
    """

    _attributes: tuple[str, ...] = ("set_grad_none",)
    _moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

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
        """For copies and pickles: adds the attributes that torch leaves out."""
        own = {name: vars(self)[name] for name in self._attributes}
        return {**super().__getstate__(), **own}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; it also checks the options."""
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
        """Frees the gradients; fills them with zeros if this or `set_grad_none` is False."""
        super().zero_grad(set_to_none=set_to_none and self.set_grad_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient.

        Args:
            closure: computes the loss and the gradients again.

        Returns: what the closure returns, or None.

        Raises:
            RuntimeError: a parameter is no real float of 16 to 64 bits; a gradient is sparse.
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
                self._update_list(group, parameters)
        return loss

    def _begin_step(self) -> None:
        """Runs before the first update of a step."""

    def _update_list(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Updates parameters of one device and one arithmetic dtype, all with a gradient."""
        states = [self.state[parameter] for parameter in parameters]
        columns = (
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            *([state[key] for state in states] for key in self._moments),
        )
        for places, work in in_batches(columns):
            self._update(group, states[places.start : places.stop], *work)

    def _update(self, group: dict[str, Any], states: list[dict[str, Any]], *work: Tensors) -> None:
        """Updates a batch in place, by torch's operations on lists of tensors.

        Args:
            states: the state of each parameter of the batch.
            work: the columns of `in_batches`: parameters; gradients, which are only read; one
                column for each key of `_moments`.
        """
        raise NotImplementedError

    def _with_gradients(self, group: dict[str, Any]) -> list[list[Tensor]]:
        """The parameters to update, by device and arithmetic dtype."""
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
        """The state of a parameter before its first update."""
        return {key: empty_like_work(parameter).zero_() for key in self._moments}

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
