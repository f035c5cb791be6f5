# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A model's tensors in a file, and the comparison with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smdistributed.modelparallel.test.torch.utils import dump_model, verify


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape))
    return made


def test_a_model_agrees_with_its_own_dump(tmp_path: Path) -> None:
    dump_model(model(), tmp_path / "model")
    verify(model(), str(tmp_path / "model"))


def test_what_differs_is_named_all_of_it(tmp_path: Path) -> None:
    dump_model(model(), tmp_path / "model")
    other = model()
    with torch.no_grad():
        other[0].bias += 1
        other[1].running_mean = torch.zeros(2)
    other.extra = nn.Linear(1, 1)
    with pytest.raises(AssertionError, match=r"in 4 of 9 tensors; expected") as caught:
        verify(other, tmp_path / "model")
    assert "\n0.bias: Tensor-likes are not close" in str(caught.value)
    assert "\n1.running_mean: The values for attribute 'shape'" in str(caught.value)
    assert "\nextra.weight: only in the model" in str(caught.value)


def test_tolerances(tmp_path: Path) -> None:
    dump_model(model(), tmp_path / "model")
    other = model()
    with torch.no_grad():
        other[0].bias += 1e-3
    verify(other, tmp_path / "model", rtol=0, atol=1e-2)
    with pytest.raises(AssertionError, match="raise rtol and atol"):
        verify(other, tmp_path / "model", rtol=0, atol=1e-4)


class OnePart(nn.Linear):
    """As a model of which this rank holds a part."""

    def local_state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "_smp_is_partial": True}


def test_of_a_partitioned_model_the_local_part(tmp_path: Path) -> None:
    part = OnePart(2, 2)
    dump_model(part, tmp_path / "part")
    assert torch.load(tmp_path / "part").keys() == {"weight"}
    verify(part, tmp_path / "part")
