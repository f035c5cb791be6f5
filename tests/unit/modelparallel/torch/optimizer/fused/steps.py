# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of all kinds, and steps of an optimizer beside its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.unit.modelparallel.torch.optimizer.fused.references import Reference, array

SHAPES = ((0,), (), (1,), (7,), (3, 5), (131,), (0, 4), (17, 31), (2, 3, 5, 7))

# Per step. bfloat16 parameters are rounded after each step, the reference's are not.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter((torch.randn(shape, generator=generator) * 0.5).to(dtype)) for shape in shapes
    ]


def set_gradients(given: Sequence[Tensor], seed: int, without: Sequence[int] = ()) -> list[Any]:
    """Random ones, of sizes that differ; of places in `without` none. Returns them as arrays."""
    generator = torch.Generator().manual_seed(1000 + seed)
    found: list[Any] = []
    for place, parameter in enumerate(given):
        made = torch.randn(parameter.shape, generator=generator) * 10.0 ** (place % 3 - 1)
        parameter.grad = None if place in without else made.to(parameter.dtype)
        found.append(None if parameter.grad is None else array(parameter.grad))
    return found


def assert_steps_agree(
    optimizer: Any,
    reference: Reference,
    steps: int = 5,
    without: Sequence[Sequence[int]] = ((),),
    tolerances: Mapping[torch.dtype, float] = TOLERANCES,
) -> None:
    """Takes steps of both, with the same gradients; compares all parameters after each.

    Args:
        without: by step, turning over: which parameters, over all groups, have no gradient.
        tolerances: of a step, relative to the largest element of a parameter.
    """
    groups = optimizer.param_groups
    everything = [each for group in groups for each in group["params"]]
    for number in range(steps):
        found = set_gradients(everything, number, without[number % len(without)])
        by_group: list[list[Any]] = []
        for group in groups:
            by_group.append(found[: len(group["params"])])
            found = found[len(group["params"]) :]
        before = [None if each.grad is None else each.grad.clone() for each in everything]
        assert optimizer.step() is None
        reference.step(by_group)
        for each, gradient in zip(everything, before, strict=True):
            assert gradient is None or torch.equal(each.grad, gradient), "gradients stay"
        assert_parameters_agree(optimizer, reference, number + 1, tolerances)


def assert_parameters_agree(
    optimizer: Any, reference: Reference, steps: int, tolerances: Mapping[torch.dtype, float]
) -> None:
    for ours, theirs in zip(optimizer.param_groups, reference.groups, strict=True):
        for place, (found, expected) in enumerate(zip(ours["params"], theirs["p"], strict=True)):
            bound = tolerances[found.dtype]
            largest = float(np.abs(expected).max(initial=1.0))
            difference = float(np.abs(array(found) - expected).max(initial=0.0))
            assert difference <= bound * steps * largest, (place, found.shape, difference)
