# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where a part of the model is, and in which dtype; the meta device stands for one of its own."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
import torch
from torch import nn

from smdistributed.modelparallel.torch.model.device import ModelDevice
from smdistributed.modelparallel.torch.modules.assignment import Decision
from smdistributed.modelparallel.torch.modules.placement import Placement, is_absent

CPU, META = torch.device("cpu"), torch.device("meta")


class Job:
    """Of a rank with this device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))
    model.register_buffer("numbers", torch.arange(4))
    return model


def _made(device: torch.device = CPU) -> tuple[ModelDevice, nn.Module]:
    with device:
        model = _model()
    return ModelDevice(model, cast(Any, Job(device))), model


def _place(where: ModelDevice, model: nn.Module, last: int = 1) -> Placement:
    places = {"main": 0, "main/0": 0, "main/1": last, "main/2": last}
    placement = Placement(model, Decision(places), 0)
    where.place(placement)
    return placement


def test_moves_wait_for_the_partition_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    where, model = _made()
    with caplog.at_level(logging.WARNING, "smdistributed"):
        where.move(META, None)
    assert "Model has not been partitioned yet, ignoring move" in caplog.text
    assert all(parameter.device == CPU for parameter in model.parameters())


def test_dtypes_change_at_once_and_stand_ins_stay_small() -> None:
    where, model = _made()
    where.move(None, torch.float64)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    _place(where, model)
    where.move(None, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model[2].weight.untyped_storage().nbytes() == 2
    assert is_absent(model[2].weight)
    assert not is_absent(model[0].weight)
    assert model.numbers.dtype is torch.int64


def test_arguments_go_to_where_the_part_is() -> None:
    where, model = _made(META)
    _place(where, model, last=0)  # what stands for other parts is in CPU memory
    (x,), more = where.arguments((torch.ones(1, 2),), {"y": [torch.ones(1)]})
    assert x.device == more["y"][0].device == META


def test_a_part_in_cpu_memory_is_called_with_what_is_given() -> None:
    where, model = _made()
    _place(where, model)
    args = ([torch.ones(1, 2, device=META)],)
    assert where.arguments(args, {})[0] is args
