# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""16-bit training in plain torch, in one process: what the library's must come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Make = Callable[[list[Any]], Any]
Loss = Callable[[Tensor, Tensor], Tensor]


class PlainSixteenBit:
    """A model in 16 bits, fp32 masters of what is trained, and an optimizer of these.

    Args:
        model: in fp32; cast here, but for modules of the kinds in `kept`.
        make: the optimizer, from a list of parameters.
        scale: of the loss; set it from step to step.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        make: Make,
        scale: float = 1.0,
        kept: tuple[type[nn.Module], ...] = (),
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.scale = scale
        for module in model.modules():
            if not isinstance(module, kept):
                for tensor in (*module._parameters.values(), *module._buffers.values()):
                    if tensor is not None and tensor.is_floating_point():
                        tensor.data = tensor.data.to(dtype)
        self.masters = {
            parameter: nn.Parameter(parameter.detach().float())
            for parameter in model.parameters()
            if parameter.dtype is dtype and parameter.requires_grad
        }
        self.updated = [self.masters.get(each, each) for each in model.parameters()]
        self.optimizer = make(self.updated)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype) if x.is_floating_point() else x
        return self.model(x).float()

    def backward(self, loss: Loss, microbatches: Sequence[tuple[Tensor, Tensor]]) -> None:
        for x, y in microbatches:
            value = loss(self.forward(x), y)
            value.backward(torch.full_like(value, self.scale / len(microbatches)))

    def average(self, replicas: Iterable[list[Tensor | None]]) -> None:
        """Takes the mean of other models' gradients, rounded once."""
        columns = zip(*replicas, strict=True)
        for parameter, theirs in zip(self.model.parameters(), columns, strict=True):
            found = [each.float() for each in theirs if each is not None]
            if found:
                mean = torch.stack(found).mean(0)
                parameter.grad = mean.to(parameter.dtype)

    def update(self, max_norm: float | None = None, norm_type: float = 2.0) -> float | None:
        """Steps, unless a gradient is infinite or NaN.

        Returns: the norm; None of a skipped step.
        """
        inverse = 1.0 / self.scale
        for parameter, master in zip(self.model.parameters(), self.updated, strict=True):
            if parameter.grad is None:
                master.grad = None
            else:
                master.grad = parameter.grad.float() * inverse
        gradients = [each.grad for each in self.updated if each.grad is not None]
        if not all(math.isfinite(float(each.abs().max())) for each in gradients):
            return None
        norm = float(nn.utils.get_total_norm(gradients, norm_type))
        if max_norm is not None:
            nn.utils.clip_grads_with_norm_(self.updated, max_norm, torch.tensor(norm))
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in self.masters.items():
                parameter.copy_(master)
        return norm

    def zero_grad(self) -> None:
        for parameter in (*self.model.parameters(), *self.updated):
            parameter.grad = None

    def named_masters(self) -> dict[str, Tensor]:
        return {
            name: self.masters[each].detach()
            for name, each in self.model.named_parameters()
            if each in self.masters
        }


def halves(x: Tensor, y: Tensor, count: int = 2) -> list[tuple[Tensor, Tensor]]:
    """Microbatches."""
    return list(zip(x.chunk(count), y.chunk(count), strict=True))
