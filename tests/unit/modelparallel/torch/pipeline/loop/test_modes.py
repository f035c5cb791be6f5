# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What torch keeps per thread, elsewhere."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smdistributed.modelparallel.torch.pipeline.loop.modes import (
    Modes,
    RandomState,
    applied,
    current_modes,
    mixed,
)


def elsewhere(function: Callable[[], Any]) -> Any:
    """What a function returns on a new thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def seen(modes: Modes) -> Modes:
    with applied(modes):
        return current_modes()


@pytest.mark.parametrize(
    "context",
    [
        torch.enable_grad(),
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
    ],
    ids=["grad", "no_grad", "inference", "autocast", "autocast16"],
)
def test_modes_of_one_thread_on_another(context: Any) -> None:
    with context:
        modes = current_modes()
        assert seen(modes) == modes
    assert elsewhere(lambda: seen(modes)) == modes


def test_nothing_of_them_stays() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        modes = current_modes()
    before = current_modes()

    def fail() -> None:
        with applied(modes._replace(default_dtype=torch.float64)):
            assert torch.get_default_dtype() is torch.float64
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fail()
    assert current_modes() == before


def test_autocast_of_the_thread_is_off_where_the_call_had_none() -> None:
    modes = current_modes()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert seen(modes).autocast == ()


def test_random_numbers_go_on_where_they_were_left() -> None:
    state = RandomState(torch.device("cpu"))
    state.seed(3)
    expected = torch.rand(4)
    state.seed(3)
    first = torch.rand(2)
    left = state.save()
    state.seed(9)
    torch.rand(5)
    state.restore(left)
    assert torch.equal(torch.cat([first, torch.rand(2)]), expected)


def test_seeds_differ_and_are_the_same_everywhere() -> None:
    seeds = {mixed(a, b) for a in range(50) for b in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert mixed(1, 2) == mixed(1, 2) != mixed(2, 1)


def test_the_generator_of_a_gpu_that_nobody_has_used_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = torch.Generator().manual_seed(3)  # stands for it
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    monkeypatch.setattr(
        torch.cuda, "init", lambda: setattr(torch.cuda, "default_generators", (on_gpu,))
    )
    random = RandomState(torch.device("cuda", 0))
    state = random.save()
    first = torch.rand(3, generator=on_gpu)
    random.restore(state)
    assert torch.equal(torch.rand(3, generator=on_gpu), first)
