# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that differ in anything but their tensors have signatures of their own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from smdistributed.modelparallel.torch.pipeline.loop.modes import current_modes
from smdistributed.modelparallel.torch.pipeline.values.signatures import CalledSignatures

X, Y = torch.zeros(2), torch.ones(3)

# Each differs from each other one, in a way that a lookup could overlook.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((X,), {}),
    ((X, Y), {}),
    ((X,), {"y": Y}),
    ((), {"x": X, "y": Y}),
    ((), {"y": Y, "x": X}),
    ((X,), {"weight": None}),
    ((X,), {"size_average": None}),
    ((X, None), {}),
    ((X, "weight", None), {}),
    ((X,), {"reduction": "mean"}),
    ((X,), {"reduction": "sum"}),
    ((X, "mean"), {}),
    ((X,), {"dim": 1}),
    ((X,), {"dim": True}),
    ((X,), {"dim": 1.0}),
    ((X,), {"scale": 0.0}),
    ((X,), {"scale": -0.0}),
    ((X,), {"dim": (1,)}),
    ((X,), {"dim": [1]}),
    (("y",), {}),
    (("y", X), {}),
    (("x", "y"), {}),
    (("x",), {"y": "y"}),
]


@pytest.mark.parametrize("is_training", [False, True])
def test_each_has_its_number_and_its_arguments(is_training: bool) -> None:
    signatures = CalledSignatures()
    numbers = []
    for (args, kwargs), _ in itertools.product(CALLS, range(3)):
        found, number, tensors, is_lasting = signatures.find(
            7, is_training, args, kwargs, current_modes()
        )
        numbers.append(number)
        assert is_lasting
        again_args, again_kwargs = found.arguments(tensors)
        assert repr(again_args) == repr(args)
        assert repr(again_kwargs) == repr(kwargs)
    assert numbers == [number for number in range(len(CALLS)) for _ in range(3)]
