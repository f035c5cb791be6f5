# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a microbatch finds on the thread that runs it."""

from __future__ import annotations

import threading
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch

from smdistributed.modelparallel.torch.pipeline.world import World

HERE = threading.local()


def begin_elsewhere(world: World) -> Any:
    """Where an activity of this world that begins on a new thread queues its work."""
    found: list[Any] = []

    def begin() -> None:
        world.begin(MagicMock())
        found.append(getattr(HERE, "stream", "the first"))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    return found[0]


def a_world() -> World:
    world = World(True, MagicMock(), MagicMock(), MagicMock())
    world.begin_step(MagicMock(default_dtype=torch.get_default_dtype()))
    return world


@pytest.mark.parametrize("is_in_use", [False, True])
def test_the_stream_of_the_step_on_every_thread(
    is_in_use: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: streams are words, and those of a thread are in a variable of its own."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_in_use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: HERE.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(HERE, "stream", stream))
    HERE.stream = cast(Any, "GPU 1, a stream of the script's")
    assert begin_elsewhere(a_world()) == (HERE.stream if is_in_use else "the first")
