# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""When a group looks at all, what it reports, and two threads at once."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from smdistributed.dataparallel.torch.adoption import adopter as adopter_module
from smdistributed.dataparallel.torch.adoption.adopter import Adopter, obstacle
from smdistributed.dataparallel.trace import recorder
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena

_NBYTES = 1 << 20


@pytest.mark.parametrize("transports", [("self",), ("self", "tcp"), ("shm", "self", "tcp")])
def test_groups_without_common_memory_do_not_look(transports: tuple[str, ...]) -> None:
    adopter = Adopter(EngineWithArena(transports), is_wanted=True)
    assert not adopter.is_possible
    assert adopter.from_elements == sys.maxsize


def test_the_switch_turns_it_off(engine: EngineWithArena) -> None:
    assert Adopter(engine, is_wanted=True).from_elements < sys.maxsize
    assert Adopter(engine, is_wanted=False).from_elements == sys.maxsize


def test_a_torch_that_cannot_exchange_memory_is_recognised(
    engine: EngineWithArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert obstacle() is None
    obstacle.cache_clear()
    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", None, raising=False)
    text = obstacle()
    assert text is not None
    assert "cannot exchange" in text
    assert Adopter(engine, is_wanted=True).from_elements == sys.maxsize


def test_a_torch_that_exchanges_otherwise_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle.cache_clear()
    swap = lambda self, other: None  # noqa: E731 -- stands where torch's method would
    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", swap, raising=False)
    assert "in another way" in (obstacle() or "")


def test_moves_and_refusals_are_in_the_trace(engine: EngineWithArena) -> None:
    adopter = Adopter(EngineWithArena(room_bytes=_NBYTES), is_wanted=True)
    recorder.start()
    try:
        for tensor in (torch.ones(_NBYTES // 4), torch.ones(_NBYTES // 4)):
            for _ in range(3):
                adopter.see(tensor)
    finally:
        events, _ = recorder.stop()
    assert [(e.name, e.track, e.args) for e in events] == [
        ("adopt", "zero copy", {"bytes": _NBYTES}),
        ("adopt", "zero copy", {"bytes": _NBYTES}),
        ("not adopted", "zero copy", {"bytes": _NBYTES, "reason": "no room in shared memory"}),
    ]


def test_two_threads_move_a_storage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in two groups' collectives at a time."""
    together = threading.Barrier(2)
    looked = adopter_module.mark_of

    def look_together(storage: torch.UntypedStorage) -> object:
        found = looked(storage)
        if not adopter_module._moving.locked():
            together.wait()
        return found

    engines = [EngineWithArena(), EngineWithArena()]
    tensor = torch.ones(_NBYTES // 4)
    adopters = [Adopter(engine, is_wanted=True) for engine in engines]
    adopters[0].see(tensor)
    monkeypatch.setattr(adopter_module, "mark_of", look_together)
    threads = [threading.Thread(target=adopter.see, args=(tensor,)) for adopter in adopters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(engine.sizes) for engine in engines) == 1
    assert bool((tensor == 1).all())
