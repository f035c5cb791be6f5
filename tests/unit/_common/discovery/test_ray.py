# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ray is asked only where it has been imported, and only inside a worker."""

import sys
import types
from typing import Any

import pytest

from smdistributed._common.discovery.ray import live_ray_context


class _Context:
    def __init__(self, rank: Any) -> None:
        self._rank = rank

    def get_world_rank(self) -> Any:
        if isinstance(self._rank, Exception):
            raise self._rank
        return self._rank


def install_ray(monkeypatch: pytest.MonkeyPatch, rank: Any) -> None:
    train = types.ModuleType("ray.train")
    train.get_context = lambda: _Context(rank)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.train", train)


def test_ray_is_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert live_ray_context() is None
    assert "ray" not in sys.modules


def test_a_worker_has_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    install_ray(monkeypatch, 3)
    context = live_ray_context()
    assert context is not None
    assert context.get_world_rank() == 3


@pytest.mark.parametrize("rank", [None, RuntimeError("not in a session")])
def test_outside_a_worker_there_is_none(monkeypatch: pytest.MonkeyPatch, rank: Any) -> None:
    install_ray(monkeypatch, rank)
    assert live_ray_context() is None
