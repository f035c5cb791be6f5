# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`FusedLAMB` beside LAMB written down."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.optimizer.fused import batches
from tests.unit.modelparallel.torch.optimizer.fused.references import PlainLamb, array
from tests.unit.modelparallel.torch.optimizer.fused.steps import (
    TOLERANCES,
    assert_steps_agree,
    parameters,
    set_gradients,
)

OPTIONS: dict[str, Any] = {
    "lr": 0.01,
    "bias_correction": True,
    "betas": (0.9, 0.95),
    "eps": 1e-6,
    "weight_decay": 0.05,
    "adam_w_mode": True,
    "grad_averaging": True,
    "max_grad_norm": 1.0,
    "use_nvlamb": False,
}


def beside(given: list[Any], **options: Any) -> tuple[smp.optimizers.FusedLAMB, PlainLamb]:
    chosen = {**OPTIONS, **options}
    reference = PlainLamb(
        given if isinstance(given[0], dict) else [{"params": given}],
        **chosen,
    )
    return smp.optimizers.FusedLAMB(given, **chosen), reference


def test_the_signature_is_apex_s() -> None:
    found = inspect.signature(smp.optimizers.FusedLAMB).parameters
    assert {name: each.default for name, each in found.items() if name != "params"} == {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "amsgrad": False,
        "adam_w_mode": True,
        "grad_averaging": True,
        "set_grad_none": True,
        "max_grad_norm": 1.0,
        "use_nvlamb": False,
    }
    assert list(found)[:5] == ["params", "lr", "bias_correction", "betas", "eps"]
    assert smp.optimizers.FusedLamb is smp.optimizers.FusedLAMB


@pytest.mark.parametrize("adam_w_mode", [True, False])
@pytest.mark.parametrize("grad_averaging", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("use_nvlamb", [True, False])
def test_options(
    adam_w_mode: bool, grad_averaging: bool, bias_correction: bool, use_nvlamb: bool
) -> None:
    given = parameters()
    optimizer, reference = beside(
        [{"params": given[:4], "lr": 0.003}, {"params": given[4:], "weight_decay": 0.0}],
        adam_w_mode=adam_w_mode,
        grad_averaging=grad_averaging,
        bias_correction=bias_correction,
        use_nvlamb=use_nvlamb,
    )
    assert_steps_agree(optimizer, reference, 6, without=[(), (3, 6), (0, 1, 2), range(9)])
    for group in reference.groups:
        assert group["p"], "the reference has moved too"
    moment = optimizer.state[given[8]]["exp_avg"]
    assert np.allclose(array(moment), reference.groups[1]["m"][4], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    given = parameters(dtype=dtype)
    optimizer, reference = beside(given)
    assert_steps_agree(optimizer, reference, 6)
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    for state in optimizer.state.values():
        assert {each.dtype for each in state.values()} == {expected}


def test_dtypes_together_have_one_norm() -> None:
    given = parameters(dtype=torch.bfloat16)[6:] + parameters()[6:] + parameters()[3:5]
    given[-1].data = given[-1].data.double()
    optimizer, reference = beside(given)
    tolerances = {**TOLERANCES, torch.float64: 1e-7}  # the norms of the others are float32
    assert_steps_agree(optimizer, reference, 4, tolerances=tolerances)


def test_a_norm_that_no_float16_can_hold() -> None:
    given = parameters([(300,)], torch.float16)
    optimizer, _ = beside(given, lr=0.5, weight_decay=0.0)
    start = given[0].detach().clone()
    given[0].grad = torch.full((300,), 1e4, dtype=torch.float16)  # of norm 173205
    optimizer.step()
    torch.testing.assert_close(given[0].detach(), start - 0.5, rtol=2e-3, atol=2e-3)
    assert optimizer.state[given[0]]["exp_avg"][0] == pytest.approx(0.1 / math.sqrt(300), rel=1e-4)


@pytest.mark.parametrize("longest", [0.0, None, math.inf, 1e-3, 1e3])
def test_the_longest_norm(longest: float | None) -> None:
    given = parameters()
    optimizer, reference = beside(given, max_grad_norm=longest)
    assert_steps_agree(optimizer, reference, 3)


def test_a_long_run() -> None:
    given = parameters()
    optimizer, reference = beside(given)
    assert_steps_agree(optimizer, reference, 100)


def test_tensors_of_zeros_take_the_plain_rate() -> None:
    """No trust ratio without a norm of the parameter or of its update."""
    given = parameters([(4,), (4,)])
    with torch.no_grad():
        given[0].zero_()
    optimizer, reference = beside(given, weight_decay=0.1, betas=(0.0, 0.0))
    assert_steps_agree(optimizer, reference, 1)
    assert float(given[0].detach().abs().max()) == pytest.approx(0.01, rel=1e-3)
    plain = parameters([(4,)])
    start = plain[0].detach().clone()
    optimizer, _ = beside(plain, use_nvlamb=True, weight_decay=0.0)
    plain[0].grad = torch.zeros(4)
    optimizer.step()
    assert torch.equal(plain[0], start)


def test_what_is_not_finite_spreads_as_in_apex() -> None:
    """A NaN is no reason to scale, an infinite norm makes the others' gradients 0."""
    for bad, others_move in ((math.nan, True), (math.inf, False)):
        given = parameters([(3,), (3,)])
        start = given[1].detach().clone()
        optimizer, _ = beside(given, weight_decay=0.0)
        set_gradients(given, 0)
        assert given[0].grad is not None
        given[0].grad[1] = bad
        optimizer.step()
        assert bool(torch.isnan(given[0][1]))
        assert torch.equal(given[1], start) is not others_move


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_pieces_and_batches_make_no_difference(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_PIECE", piece)
    monkeypatch.setitem(batches._BATCH, "cpu", 3 * piece)
    for dtype in (torch.float32, torch.float16):
        optimizer, reference = beside(parameters(dtype=dtype))
        assert_steps_agree(optimizer, reference, 3)


@for_all(
    shapes=st.lists(st.lists(st.integers(0, 6), max_size=3).map(tuple), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    absent=st.sets(st.integers(0, 5)),
    longest=st.sampled_from([0.0, 0.1, 100.0]),
    decay=st.sampled_from([0.0, 0.3]),
    adam_w_mode=st.booleans(),
    grad_averaging=st.booleans(),
)
@settings(max_examples=40)
def test_any_shapes(
    shapes: list[tuple[int, ...]],
    seed: int,
    absent: set[int],
    longest: float,
    decay: float,
    adam_w_mode: bool,
    grad_averaging: bool,
) -> None:
    optimizer, reference = beside(
        parameters(shapes, seed=seed),
        max_grad_norm=longest,
        weight_decay=decay,
        adam_w_mode=adam_w_mode,
        grad_averaging=grad_averaging,
    )
    assert_steps_agree(
        optimizer, reference, 3, without=[tuple(absent), ()], tolerances={torch.float32: 1e-5}
    )
