# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`FusedNovoGrad` beside NovoGrad written down."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.optimizer.fused import batches
from tests.unit.modelparallel.torch.optimizer.fused.references import PlainNovoGrad
from tests.unit.modelparallel.torch.optimizer.fused.steps import assert_steps_agree, parameters

OPTIONS: dict[str, Any] = {
    "lr": 0.01,
    "bias_correction": True,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.05,
    "reg_inside_moment": False,
    "grad_averaging": True,
    "norm_type": 2,
    "init_zero": False,
}


def beside(given: list[Any], **options: Any) -> tuple[smp.optimizers.FusedNovoGrad, PlainNovoGrad]:
    chosen = {**OPTIONS, **options}
    reference = PlainNovoGrad(
        given if isinstance(given[0], dict) else [{"params": given}],
        **chosen,
    )
    return smp.optimizers.FusedNovoGrad(given, **chosen), reference


def test_the_signature_is_apex_s() -> None:
    found = inspect.signature(smp.optimizers.FusedNovoGrad).parameters
    assert {name: each.default for name, each in found.items() if name != "params"} == {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        "reg_inside_moment": False,
        "grad_averaging": True,
        "norm_type": 2,
        "init_zero": False,
        "set_grad_none": True,
    }
    assert list(found)[:5] == ["params", "lr", "bias_correction", "betas", "eps"]


@pytest.mark.parametrize("reg_inside_moment", [True, False])
@pytest.mark.parametrize("grad_averaging", [True, False])
@pytest.mark.parametrize("init_zero", [True, False])
@pytest.mark.parametrize("norm_type", [2, 0, math.inf])
def test_options(
    reg_inside_moment: bool, grad_averaging: bool, init_zero: bool, norm_type: float
) -> None:
    given = parameters()
    optimizer, reference = beside(
        [
            {"params": given[:4], "lr": 0.003, "bias_correction": False},
            {"params": given[4:], "weight_decay": 0.0},
        ],
        reg_inside_moment=reg_inside_moment,
        grad_averaging=grad_averaging,
        init_zero=init_zero,
        norm_type=norm_type,
    )
    assert_steps_agree(optimizer, reference, 6, without=[(8,), (3, 6), (0, 1, 2), range(9)])
    norms = [optimizer.state[each]["exp_avg_sq"] for each in given]
    theirs = [*reference.groups[0]["n"], *reference.groups[1]["n"]]
    for norm, expected in zip(norms, theirs, strict=True):
        assert norm.shape == ()
        assert expected is None or float(norm) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    optimizer, reference = beside(parameters(dtype=dtype))
    assert_steps_agree(optimizer, reference, 6)
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    for state in optimizer.state.values():
        assert {each.dtype for each in state.values()} == {expected}


def test_a_long_run() -> None:
    optimizer, reference = beside(parameters())
    assert_steps_agree(optimizer, reference, 100)


def test_a_gradient_of_zeros() -> None:
    given = parameters([(4,)])
    start = given[0].detach().clone()
    optimizer, _ = beside(given, weight_decay=0.0)
    given[0].grad = torch.zeros(4)
    optimizer.step()
    assert torch.equal(given[0], start)


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
    norm_type=st.sampled_from([0, 2]),
    decay=st.sampled_from([0.0, 0.3]),
    reg_inside_moment=st.booleans(),
    init_zero=st.booleans(),
)
@settings(max_examples=40)
def test_any_shapes(
    shapes: list[tuple[int, ...]],
    seed: int,
    absent: set[int],
    norm_type: float,
    decay: float,
    reg_inside_moment: bool,
    init_zero: bool,
) -> None:
    optimizer, reference = beside(
        parameters(shapes, seed=seed),
        norm_type=norm_type,
        weight_decay=decay,
        reg_inside_moment=reg_inside_moment,
        init_zero=init_zero,
    )
    assert_steps_agree(
        optimizer, reference, 3, without=[tuple(absent), ()], tolerances={torch.float32: 1e-5}
    )
