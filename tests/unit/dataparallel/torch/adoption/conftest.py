# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share: an engine with an arena, and torch as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smdistributed.dataparallel.torch.adoption import adopter as adopter_module
from smdistributed.dataparallel.torch.adoption import watch
from smdistributed.dataparallel.torch.adoption.adopter import Adopter
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena


@pytest.fixture
def engine() -> EngineWithArena:
    return EngineWithArena()


@pytest.fixture
def adopter(engine: EngineWithArena) -> Adopter:
    return Adopter(engine)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrappers that the import of the backend installs, for one test."""
    monkeypatch.setattr(torch.Tensor, "__dlpack__", torch.Tensor.__dlpack__)
    monkeypatch.setattr(torch, "to_dlpack", torch.to_dlpack)
    monkeypatch.setattr(torch.utils.dlpack, "to_dlpack", torch.utils.dlpack.to_dlpack)
    monkeypatch.setattr(torch.UntypedStorage, "resize_", torch.UntypedStorage.resize_)
    watch.install()


@pytest.fixture(autouse=True)
def _ask_torch_again() -> Iterator[None]:
    yield
    adopter_module.obstacle.cache_clear()
