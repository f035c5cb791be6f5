# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`FusedAdam` beside torch's Adam and AdamW, and beside Adam written down."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import smdistributed.modelparallel.torch as smp
from tests.unit.modelparallel.torch.optimizer.fused.references import PlainAdam
from tests.unit.modelparallel.torch.optimizer.fused.steps import (
    SHAPES,
    assert_steps_agree,
    parameters,
    set_gradients,
)


def test_the_signature_is_apex_s() -> None:
    assert str(inspect.signature(smp.optimizers.FusedAdam)).replace(" ", "").partition(")->")[
        0
    ] == (
        "(params:'Any',lr:'float'=0.001,bias_correction:'bool'=True,"
        "betas:'tuple[float,float]'=(0.9,0.999),eps:'float'=1e-08,adam_w_mode:'bool'=True,"
        "weight_decay:'float'=0.0,amsgrad:'bool'=False,set_grad_none:'bool'=True"
    )


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_it_is_torch_s(decoupled: bool, fused: bool) -> None:
    """With all gradients there, so that steps of a group are those of its parameters."""
    ours, theirs = parameters(), parameters()
    kind: Any = torch.optim.AdamW if decoupled else torch.optim.Adam
    reference = kind(theirs, lr=0.01, betas=(0.8, 0.99), eps=1e-7, weight_decay=0.1, fused=fused)
    optimizer = smp.optimizers.FusedAdam(
        ours, lr=0.01, betas=(0.8, 0.99), eps=1e-7, weight_decay=0.1, adam_w_mode=decoupled
    )
    for number in range(20):
        set_gradients(ours, number)
        set_gradients(theirs, number)
        optimizer.step()
        reference.step()
    for found, expected in zip(ours, theirs, strict=True):
        if fused:
            assert torch.equal(found, expected)
        else:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(optimizer.state[found][key], reference.state[expected][key])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("decoupled", [True, False])
def test_it_is_adam(dtype: torch.dtype, bias_correction: bool, decoupled: bool) -> None:
    given = parameters(dtype=dtype)
    options = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.05}
    options |= {"bias_correction": bias_correction, "adam_w_mode": decoupled}
    groups = [{"params": given[:4], "lr": 0.003}, {"params": given[4:], "weight_decay": 0.0}]
    reference = PlainAdam(groups, **options)
    optimizer = smp.optimizers.FusedAdam(groups, **options)
    assert_steps_agree(optimizer, reference, 8, without=[(), (3, 6), (0, 1, 2), range(9)])
    assert [group["step"] for group in optimizer.param_groups] == [8, 8]


def test_sixteen_bits_are_float32_in_between() -> None:
    """In float16 a second moment of 1e-8 is 0; the step would be a thousand times as long."""
    given = parameters([(5,)], torch.float16)
    start = given[0].detach().clone()
    optimizer = smp.optimizers.FusedAdam(given, lr=0.25)
    given[0].grad = torch.full((5,), 1e-4, dtype=torch.float16)
    optimizer.step()
    state = optimizer.state[given[0]]
    assert {each.dtype for each in state.values()} == {torch.float32}
    torch.testing.assert_close(given[0].detach(), start - 0.25, rtol=2e-3, atol=2e-3)


def test_many_shapes_in_one_batch() -> None:
    given = parameters([*SHAPES] * 30)
    optimizer = smp.optimizers.FusedAdam(given, lr=0.01)
    reference = PlainAdam([{"params": given}], **optimizer.defaults, adam_w_mode=True)
    assert_steps_agree(optimizer, reference, 2)
