# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradient norms in one process, and torch's functions put back (specification, section 8)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as torchs

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.optimizer import gradient_norms

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("foreach", [None, False, True])
def test_the_method_with_one_partition(norm_type: float, foreach: bool | None) -> None:
    smp.init({})
    plain = nn.Linear(4, 3)
    model = smp.DistributedModel(nn.Linear(4, 3))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        other.grad = torch.randn_like(other)
        one.grad = other.grad.clone()
    expected = torchs(plain.parameters(), 0.5, norm_type, foreach=foreach)
    assert torch.equal(model.clip_grad_norm_(0.5, norm_type, foreach=foreach), expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    next(model.parameters()).grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        model.clip_grad_norm_(0.5, error_if_nonfinite=True)


def test_torchs_functions_are_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = nn.utils.clip_grad_norm_, nn.utils.get_total_norm, nn.utils.clip_grad._get_total_norm
    gradient_norms.install()
    try:
        assert nn.utils.clip_grad_norm_ is not before[0]
        # Without a model, as ever: in the way they are called, too.
        parameter = nn.Parameter(torch.zeros(4))
        parameter.grad = torch.ones(4)
        assert nn.utils.clip_grad_norm_(parameter, 1.0) == 2.0
        assert torchs(iter([parameter]), max_norm=1.0, foreach=True) == pytest.approx(1.0)
        assert nn.utils.get_total_norm([torch.ones(9)]) == 3.0
        assert nn.utils.get_total_norm([]) == 0.0
        assert nn.utils.clip_grad_norm_.__doc__ == before[0].__doc__
        own = object()
        monkeypatch.setattr(nn.utils, "clip_grad_norm_", own)
        gradient_norms.uninstall()
        assert nn.utils.clip_grad_norm_ is own, "somebody's, by now"
    finally:
        monkeypatch.undo()
        gradient_norms.uninstall()
    after = nn.utils.clip_grad_norm_, nn.utils.get_total_norm, nn.utils.clip_grad._get_total_norm
    assert after == before


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gradient_norms.SWITCH, "0")
    gradient_norms.install()
    assert nn.utils.clip_grad_norm_ is torchs
    monkeypatch.setenv(gradient_norms.SWITCH, "yes")
    with pytest.raises(ValueError, match="expected 0 or 1"):
        gradient_norms.install()
