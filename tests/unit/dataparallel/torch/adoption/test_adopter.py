# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an adopter reports, and two threads at once."""

from __future__ import annotations

import threading

import pytest
import torch

from smdistributed.dataparallel.torch.adoption import adopter as adopter_module
from smdistributed.dataparallel.torch.adoption.adopter import Adopter, obstacle
from smdistributed.dataparallel.torch.adoption.gate import gate
from smdistributed.dataparallel.trace import recorder
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena, see

_NBYTES = 1 << 20


def test_a_torch_that_cannot_exchange_memory_is_recognised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert obstacle() is None
    obstacle.cache_clear()
    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", None, raising=False)
    text = obstacle()
    assert text is not None
    assert "cannot exchange" in text


def test_a_torch_that_exchanges_otherwise_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle.cache_clear()
    swap = lambda self, other: None  # noqa: E731 -- stands where torch's method would
    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", swap, raising=False)
    assert "in another way" in (obstacle() or "")


def test_a_torch_that_does_not_count_views_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle.cache_clear()
    monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda address: 2)
    assert "how many tensors view a storage" in (obstacle() or "")


def test_moves_and_refusals_are_in_the_trace(engine: EngineWithArena) -> None:
    adopter = Adopter(EngineWithArena(room_bytes=_NBYTES))
    recorder.start()
    try:
        for tensor in (torch.ones(_NBYTES // 4), torch.ones(_NBYTES // 4)):
            for _ in range(3):
                see(adopter, tensor)
    finally:
        events, _ = recorder.stop()
    assert [(e.name, e.track, e.args) for e in events] == [
        ("adopt", "zero copy", {"bytes": _NBYTES}),
        ("adopt", "zero copy", {"bytes": _NBYTES}),
        ("not adopted", "zero copy", {"bytes": _NBYTES, "reason": "no room in shared memory"}),
    ]


def test_two_threads_move_a_storage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in two groups' collectives at a time: neither moves it under the other's hands."""
    together = threading.Barrier(2)
    looked = adopter_module.mark_of

    def look_together(storage: torch.UntypedStorage) -> object:
        found = looked(storage)
        together.wait()
        return found

    engines = [EngineWithArena(), EngineWithArena()]
    tensor = torch.ones(_NBYTES // 4)
    adopters = [Adopter(engine) for engine in engines]
    see(adopters[0], tensor)
    monkeypatch.setattr(adopter_module, "mark_of", look_together)
    threads = [threading.Thread(target=_see_with, args=(a, tensor, together)) for a in adopters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(engine.sizes) for engine in engines) == 0
    monkeypatch.setattr(adopter_module, "mark_of", looked)
    for adopter in adopters:
        see(adopter, tensor)
    assert sum(len(engine.sizes) for engine in engines) == 1
    assert bool((tensor == 1).all())


def _see_with(adopter: Adopter, tensor: torch.Tensor, together: threading.Barrier) -> None:
    with gate.call():
        adopter.see(tensor, "all_reduce")
        together.wait()  # nobody leaves before both have looked


def test_nothing_moves_outside_the_gate(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = torch.ones(_NBYTES // 4)
    for _ in range(3):
        adopter.see(tensor, "all_reduce")
    assert not engine.sizes
