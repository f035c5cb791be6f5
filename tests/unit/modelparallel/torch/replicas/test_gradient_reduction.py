# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which steps reduce gradients, and when; with replicas that only take notes."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.replicas import gradient_reduction
from smdistributed.modelparallel.torch.replicas.gradient_reduction import GradientReduction


class Notes:
    """In place of `Replicas`."""

    log: list[str]
    num_looks: int
    has_unreduced = False
    has_nothing = False

    def __init__(self, *args: Any, **options: Any) -> None:
        Notes.log = []
        Notes.num_looks = 0

    def follow_changes(self) -> None:
        Notes.num_looks += 1

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.log.append(name)


class Job:
    """Of two replicas, or of one process."""

    def __init__(self, replicas: int) -> None:
        self.config = Config.parse({"ddp": replicas > 1}, {})
        self.device = torch.device("cpu")
        self._replicas = replicas

    def size_of(self, kind: Any) -> int:
        return self._replicas

    def process_group(self, kind: Any) -> None:
        return None


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_reduction, "Replicas", Notes)


def _made(replicas: int = 2, **options: Any) -> GradientReduction:
    given: dict[str, Any] = {
        "overlaps": True,
        "passes_per_step": 1,
        "broadcast_buffers": True,
        "bucket_cap_mb": 25,
        "gradient_as_bucket_view": False,
        **options,
    }
    return GradientReduction(cast(Any, Job(replicas)), **given)


def _placed(replicas: int = 2, **options: Any) -> GradientReduction:
    made = _made(replicas, **options)
    made.place(cast(Placement, None))
    return made


def _step(reduction: GradientReduction) -> list[str]:
    """What a step with a backward pass does."""
    Notes.log = []
    reduction.begin_step(is_training=True)
    reduction.before_last_backward()
    reduction.end_step()
    return Notes.log


def test_each_step_reduces_on_the_way_or_at_its_end() -> None:
    assert _step(_placed()) == ["sync_buffers", "arm", "finish"]
    assert _step(_placed(overlaps=False)) == ["sync_buffers", "finish"]


def test_every_third_step() -> None:
    reduction = _placed(passes_per_step=3)
    found = [_step(reduction) for _ in range(6)]
    assert found == 2 * [["sync_buffers"], ["sync_buffers"], ["sync_buffers", "arm", "finish"]]


def test_what_is_pending_is_reduced_once_and_the_count_begins_anew() -> None:
    reduction = _placed(passes_per_step=2)
    reduction.reduce_pending()
    assert Notes.log == []
    _step(reduction)
    reduction.reduce_pending()
    assert Notes.log == ["sync_buffers", "finish"]
    assert "finish" not in _step(reduction)
    assert "finish" in _step(reduction)


@pytest.mark.parametrize("why", ["has_unreduced", "has_nothing"])
def test_what_came_outside_of_steps_is_pending(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reduction = _placed()
    monkeypatch.setattr(Notes, why, True)
    reduction.reduce_pending()
    assert Notes.log == ["finish"]
    assert Notes.num_looks == 1


def test_changes_of_parameters_are_looked_for_where_gradients_may_come() -> None:
    reduction = _placed()
    _step(reduction)
    with torch.no_grad():
        reduction.begin_step(is_training=False)
    assert Notes.num_looks == 1


def test_steps_without_sync_do_not_count() -> None:
    reduction = _placed(passes_per_step=2)
    with reduction.no_sync():
        assert _step(reduction) == ["sync_buffers"]
        with reduction.no_sync():
            pass
        assert _step(reduction) == ["sync_buffers"]
    assert _step(reduction) == ["sync_buffers"]
    assert _step(reduction) == ["sync_buffers", "arm", "finish"]


def test_buffers_are_those_of_the_first_replica_in_training_with_gradients_only() -> None:
    reduction = _placed()
    reduction.begin_step(is_training=False)
    with torch.no_grad():
        reduction.begin_step(is_training=True)
    assert Notes.log == []


def test_without_replicas_nothing_is_done() -> None:
    reduction = _placed(replicas=1)
    assert not reduction.has_replicas
    Notes.log = []
    assert _step(reduction) == []
    reduction.fail_step()
    reduction.reduce_pending()
    for call in (reduction.join, lambda: reduction.register_comm_hook(None, print)):
        with pytest.raises(RuntimeError, match="ddp: True"):
            call()


def test_a_hook_may_come_before_the_replicas() -> None:
    reduction = _made()
    reduction.register_comm_hook(None, print)
    assert reduction.has_hook
    reduction.place(cast(Placement, None))
    assert Notes.log == ["register_comm_hook"]
    with pytest.raises(RuntimeError, match="called twice"):
        reduction.register_comm_hook(None, print)
    with pytest.raises(RuntimeError, match="needs overlapping_allreduce"):
        _placed(overlaps=False).register_comm_hook(None, print)
