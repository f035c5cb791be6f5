# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who looks at the tensors of a group, by setting and by where its ranks are."""

from __future__ import annotations

import sys

import pytest
import torch

from smdistributed._common.settings import ZeroCopy
from smdistributed.dataparallel.torch.adoption.adopter import Adopter, obstacle
from smdistributed.dataparallel.torch.adoption.notice import Notice
from smdistributed.dataparallel.torch.adoption.observer import make_observer
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena


def test_by_default_nothing_moves(engine: EngineWithArena) -> None:
    assert isinstance(make_observer(engine, ZeroCopy.OWN), Notice)
    assert isinstance(make_observer(engine, ZeroCopy.RECURRING), Adopter)
    assert make_observer(engine, ZeroCopy.OFF).from_elements == sys.maxsize


@pytest.mark.parametrize("zero_copy", [ZeroCopy.OWN, ZeroCopy.RECURRING])
@pytest.mark.parametrize("transports", [("self",), ("self", "tcp"), ("shm", "self", "tcp")])
def test_groups_without_common_memory_do_not_look(
    transports: tuple[str, ...], zero_copy: ZeroCopy
) -> None:
    assert make_observer(EngineWithArena(transports), zero_copy).from_elements == sys.maxsize


def test_a_torch_that_cannot_move_is_left_alone(
    engine: EngineWithArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstacle.cache_clear()
    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", None, raising=False)
    assert make_observer(engine, ZeroCopy.RECURRING).from_elements == sys.maxsize
