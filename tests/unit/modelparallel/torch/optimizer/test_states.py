# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What of an optimizer's state is on a rank. Gathering is tested with ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from smdistributed.modelparallel.torch.modules.assignment import Decision
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.optimizer.sharding import parameters_of
from smdistributed.modelparallel.torch.optimizer.states import (
    has_nothing_here,
    indices_by_id,
    is_like_torchs,
    local_state,
    move_state,
    parameters_here,
)


class Made:
    """A model of two layers on two partitions, and its optimizer after a step, in two groups."""

    def __init__(self, pp_rank: int) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        first, second = self.model
        self.optimizer: Any = torch.optim.Adam(
            [{"params": second.parameters()}, {"params": first.parameters(), "lr": 0.1}]
        )
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.optimizer._param_id_to_index = lambda: indices_by_id(self.optimizer)
        places = {"main": 0, "main/0": 0, "main/1": 1}
        self.placement = Placement(self.model, Decision(places), pp_rank)


def test_indices_are_those_of_the_groups_in_order() -> None:
    made = Made(0)
    first, second = made.model
    expected = [second.weight, second.bias, first.weight, first.bias]
    assert all(a is b for a, b in zip(parameters_of(made.optimizer), expected, strict=True))
    assert indices_by_id(made.optimizer) == {id(p): n for n, p in enumerate(expected)}


@pytest.mark.parametrize(("pp_rank", "here"), [(0, {2, 3}), (1, {0, 1})])
def test_a_rank_has_the_indices_of_its_part(pp_rank: int, here: set[int]) -> None:
    made = Made(pp_rank)
    assert set(parameters_here(made.optimizer, made.placement)) == here
    assert set(parameters_here(made.optimizer, None)) == {0, 1, 2, 3}
    own = made.optimizer.state_dict()
    assert set(local_state(made.optimizer, made.placement, own)["state"]) == here
    assert local_state(made.optimizer, None, own) is own
    move_state(made.optimizer, made.placement)
    assert set(made.optimizer.state_dict()["state"]) == here


def test_an_optimizer_may_have_nothing_here() -> None:
    made = Made(0)
    del made.optimizer.param_groups[1]
    assert has_nothing_here(made.optimizer, made.placement)
    assert not has_nothing_here(made.optimizer, None)
    assert not has_nothing_here(Made(0).optimizer, made.placement)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"state": {}, "param_groups": []}, True),
        ({"state": [], "param_groups": []}, False),
        ({"state": {}}, False),
        ({"param_groups": []}, False),
        ([], False),
        (None, False),
    ],
)
def test_which_dictionaries_are_like_torchs(own: Any, expected: bool) -> None:
    assert is_like_torchs(own) is expected
    made = Made(0)
    if not expected:
        assert local_state(made.optimizer, made.placement, own) is own
