# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What of a model is on a rank (specification, sections 3.1, 3.8 and 3.10)."""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest
import torch
from torch import nn

from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.modules.assignment import Decision
from smdistributed.modelparallel.torch.modules.placement import Placement, absent_like
from smdistributed.modelparallel.torch.partitioning.partitioner import log_placement

CPU = torch.device("cpu")


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 4))


def _placed(rank: int, places: tuple[int, int, int, int] = (0, 0, 0, 1)) -> Placement:
    decided = {"main": 0} | {f"main/{number}": place for number, place in enumerate(places)}
    return Placement(_model(), Decision(decided), rank)


def test_every_rank_has_its_part() -> None:
    names = [
        [name for name, _ in placement.local_parameters()] for placement in (_placed(0), _placed(1))
    ]
    assert names == [["0.weight", "0.bias", "1.weight", "1.bias"], ["3.weight", "3.bias"]]
    assert [name for name, _ in _placed(1).local_buffers()] == []
    assert [name for name, _ in _placed(1).local_modules()] == ["3"]


def test_objects_stay_and_what_is_elsewhere_takes_no_memory() -> None:
    placement = _placed(1)
    model = placement.model
    before = {name: (id(p), p.shape, p.dtype) for name, p in model.named_parameters()}
    kept = model[3].weight.detach().clone()
    model[0].weight.grad = torch.ones(3, 2)
    placement.apply(CPU)
    after = {name: (id(p), p.shape, p.dtype) for name, p in model.named_parameters()}
    assert after == before
    assert torch.equal(model[3].weight, kept)
    assert model[0].weight.untyped_storage().nbytes() == 4
    assert model[1].num_batches_tracked.untyped_storage().nbytes() == 8
    assert model[0].weight.grad is None


def test_what_is_elsewhere_is_nan_and_cannot_be_written() -> None:
    placement = _placed(1)
    placement.apply(CPU)
    weight = placement.model[0].weight
    assert weight.isnan().all()
    with pytest.raises(RuntimeError, match="single memory location"):
        nn.init.normal_(weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5)])
def test_stand_ins_have_shape_and_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    absent = absent_like(tensor)
    assert (absent.shape, absent.dtype) == (tensor.shape, tensor.dtype)
    assert absent.untyped_storage().nbytes() == dtype.itemsize


def test_what_holds_nothing_is_run_by_whoever_calls_it() -> None:
    placement = _placed(1)
    assert placement.model[2] not in placement.owners
    assert placement.owners[placement.model[1]] == 0


def test_shared_parameters_have_one_home() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    with pytest.raises(ConfigError, match="are one parameter, but in partitions 0 and 1"):
        Placement(model, Decision({"main": 0, "main/0": 0, "main/1": 1}), 0)
    placement = Placement(model, Decision({"main": 0, "main/0": 1, "main/1": 1}), 1)
    assert list(placement.partition_of) == ["0.weight", "0.bias", "1.bias"]


@pytest.mark.parametrize(("places", "is_told"), [((0, 0, 0, 0), True), ((0, 0, 0, 1), False)])
def test_a_rank_without_parameters_is_told(
    places: tuple[int, int, int, int], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job: Any = types.SimpleNamespace(
        rank=1,
        config=types.SimpleNamespace(partitions=2),
        has_pipeline=True,
        rank_in=lambda kind: 0,
    )
    with caplog.at_level(logging.WARNING, "smdistributed"):
        log_placement(job, _placed(1, places))
    told = [record.getMessage() for record in caplog.records]
    assert [("Partition 1 has no parameters" in each) for each in told] == [True] * is_told
