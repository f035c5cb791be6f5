# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that differ in anything but their tensors have signatures of their own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from smdistributed.modelparallel.torch.pipeline.loop.modes import current_modes
from smdistributed.modelparallel.torch.pipeline.values.signatures import (
    CalledSignatures,
    KnownSignatures,
)

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


def test_a_signature_that_serves_once_ends_with_its_step() -> None:
    """Of a call that did not run it stayed, up to 2.0.0."""
    signatures = CalledSignatures()
    once = signatures.find(7, False, (X, [object()]), {}, current_modes())
    lasting = signatures.find(7, False, (X,), {}, current_modes())
    known = KnownSignatures()
    known.learn(3, {once[1]: once[0], lasting[1]: lasting[0]})
    known.forget_single()
    assert known.get(3, lasting[1]) == lasting[0]
    with pytest.raises(KeyError):
        known.get(3, once[1])


def test_equal_arguments_that_are_not_the_same_differ() -> None:
    signatures = CalledSignatures()
    numbers = [
        signatures.find(7, False, (X, value), {}, current_modes())[1]
        for value in (
            {1: 2},
            {True: 2},
            {1.0: 2},
            {(1, 2): 2},
            {(True, 2): 2},
            complex(0.0, 0.0),
            complex(0.0, -0.0),
            complex(-0.0, 0.0),
        )
    ]
    assert len(set(numbers)) == len(numbers)
    nan = [signatures.find(7, False, (X, float("nan")), {}, current_modes())[1] for _ in range(2)]
    assert nan[0] == nan[1], "one not-a-number is as good as another"
