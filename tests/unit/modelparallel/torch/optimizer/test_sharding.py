# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sharded optimizer states in one process (specification, 6.6): nothing to share, and messages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from smdistributed._common.errors import UnsupportedError
from smdistributed.modelparallel.torch.optimizer.sharding import parameters_of
from smdistributed.modelparallel.torch.optimizer.states import (
    SHARDS,
    _check_shards,
    united_shards,
)

pytestmark = pytest.mark.usefixtures("alone")


def test_without_replicas_it_changes_nothing() -> None:
    smp.init({"ddp": True, "shard_optimizer_state": True})
    torch.manual_seed(0)
    plain = nn.Linear(3, 2)
    model = smp.DistributedModel(copy.deepcopy(plain))
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    reference = torch.optim.Adam(plain.parameters(), lr=0.1)
    for each, stepper in ((model, optimizer), (plain, reference)):
        each(torch.ones(1, 3)).sum().backward()
        stepper.step()
    assert torch.equal(model.get_module().weight, plain.weight)
    assert optimizer.state_dict().keys() == {"state", "param_groups"}
    local: dict[str, Any] = optimizer.local_state_dict()
    assert list(local["state"]) == [0, 1]
    assert SHARDS not in local
    with model.join():
        pass


def test_lbfgs_is_refused() -> None:
    smp.init({"ddp": True, "shard_optimizer_state": True})
    with pytest.raises(UnsupportedError, match="leave shard_optimizer_state out"):
        smp.DistributedOptimizer(torch.optim.LBFGS(nn.Linear(2, 2).parameters()))


def test_shards_are_united() -> None:
    groups = [{"lr": 0.1, "params": [0, 1, 2]}]
    one = {"state": {0: "a", 2: "c"}, "param_groups": groups, SHARDS: [[0, 0, 2]]}
    other = {"state": {1: "b"}, "param_groups": groups, SHARDS: [[0, 1, 2]]}
    assert united_shards([one, other]) == {
        "state": {0: "a", 1: "b", 2: "c"},
        "param_groups": groups,
        SHARDS: [[0, 0, 2], [0, 1, 2]],
    }
    assert one["state"] == {0: "a", 2: "c"}


def test_a_state_of_missing_shards_is_refused() -> None:
    _check_shards([[0, 0, 2], [0, 1, 2], [1, 0, 1], [0, 1, 2]])
    with pytest.raises(ValueError, match=r"in 3 shards, and those of partition 1 and dp_rank 0, 2"):
        _check_shards([[0, 0, 1], [1, 1, 3]])


def test_all_parameters_outside_of_a_step() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.bias]}, {"params": [model.weight]}], lr=0.1)
    assert [id(each) for each in parameters_of(optimizer)] == [id(model.bias), id(model.weight)]
