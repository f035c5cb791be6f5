# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.plan()`: what it finds out about models, without any other process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.decide.partition_file import write_partition
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.report.costs import Profile
from smdistributed.modelparallel.torch.modules.assignment import module_paths
from smdistributed.modelparallel.torch.reporting.profile import profile

WIDTH = 16


class Net(nn.Module):
    """A row of layers, a function of the root's between them, a shortcut over the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.act = nn.ReLU()
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[size, WIDTH] to [size, 4]."""
        x = self.first(x)
        result: Tensor = self.last(self.act(self.norm(x)) + x)
        return result


def _profile(
    model: nn.Module, *args: Any, loss: Any = None, labels: tuple[Any, ...] = ()
) -> Profile:
    return profile(model, args, {}, loss, labels, torch.device("cpu"))


def _summed(pieces: Any) -> list[str]:
    return [path for path, *_ in pieces]


def test_whose_each_part_of_the_run_is() -> None:
    found = _profile(Net(), torch.randn(8, WIDTH), loss=lambda y: y.pow(2).sum())
    # What holds nothing is its caller's; the loss is where its input is made.
    assert _summed(found.forward) == [
        *("main", "main/first", "main", "main/norm", "main", "main/last", "main", "main/last")
    ]
    order = [path for path in _summed(found.backward) if path != "main"]
    assert list(dict.fromkeys(order)) == ["main/last", "main/norm", "main/first"]
    assert _summed(found.forward_levels) == _summed(found.forward)


def test_memory_that_lives_between_forward_and_backward() -> None:
    size = 64
    found = _profile(Net(), torch.randn(size, WIDTH))
    kept = dict.fromkeys(_summed(found.forward_levels), 0)
    for level in found.forward_levels:
        kept[level.path] += level.end - level.begin
        assert level.peak >= max(level.begin, level.end)
    # The result of the first layer is the normalisation's input; that of the ReLU and the sum are
    # the root's; the last layer's result is summed up and forgotten.
    row = size * WIDTH * 4
    assert kept["main/first"] == row
    assert row <= kept["main/norm"] <= row + 1024
    assert kept["main"] >= row
    gradients = dict.fromkeys(_summed(found.backward_levels), 0)
    for back in found.backward_levels:
        gradients[back.path] += back.gradients
        assert back.peak_with >= back.peak - 1 or back.gradients == 0
    assert gradients["main/first"] == 4 * (WIDTH * WIDTH + WIDTH)
    assert gradients["main/norm"] == 4 * 2 * WIDTH
    assert gradients["main/last"] == 4 * (4 * WIDTH + 4)


def test_what_the_loss_no_longer_needs_is_let_go_before_the_way_back() -> None:
    size, classes = 32, 512
    model = nn.Sequential(nn.Linear(WIDTH, classes))
    row = size * classes * 4

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels)

    labels = torch.zeros(size, dtype=torch.long)
    found = _profile(model, torch.randn(size, WIDTH), loss=loss, labels=(labels,))
    ahead, back = found.forward_levels, found.backward_levels
    # A loss keeps the logarithm of the softmax, not the logits: both live while it computes only.
    assert 2 * row <= max(level.peak for level in ahead) < 2.1 * row
    assert row <= ahead[-1].end < 1.1 * row
    assert row <= back[0].begin < 1.1 * row


def test_a_result_that_nobody_goes_back_from_keeps_nothing() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 256)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.used(x), self.unused(x).exp().log()

    size = 64
    found = _profile(Two(), torch.randn(size, WIDTH), loss=lambda both: both[0].sum())
    row = size * 256 * 4
    assert max(level.peak for level in found.forward_levels) >= 2 * row
    assert found.backward_levels[0].begin < row


def test_what_passes_from_module_to_module() -> None:
    size = 8
    found = _profile(Net(), torch.randn(size, WIDTH))
    row = size * WIDTH * 4
    messages = [(each.source, each.dests, each.num_bytes) for each in found.messages]
    assert ("main", ("main/first",), row) in messages  # the input
    assert ("main/first", ("main/norm", "main"), row) in messages  # and the shortcut
    assert ("main", ("main/last",), row) in messages  # the sum


def test_the_model_stays_as_it_was() -> None:
    model = Net()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    _profile(model, torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.rand(3), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight))
    assert model.last.weight.grad is None


def test_a_checkpoint_computes_again_on_the_way_back() -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    import torch.utils.checkpoint

    found = _profile(Checkpointed(), torch.randn(64, WIDTH))
    assert sum(seconds for _, seconds in found.backward) > 0
    assert {path for path, _ in found.forward} >= {"main", "main/first", "main/last"}


def test_nothing_to_go_back_from() -> None:
    model = Net().requires_grad_(False)
    with pytest.raises(ValueError, match="train some parameters"):
        _profile(model, torch.randn(8, WIDTH))


# --- plans ---


def _row(layers: int = 6) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))


def test_a_plan_decides_as_the_first_step_would_and_says_what_follows() -> None:
    by_memory = {"memory_weight": 1.0}  # else messages would cost so small a model too much
    batch = (torch.randn(64, 64),)
    found = smp.plan(_row(), batch, ranks=2, microbatches=4, config=by_memory)
    (report,) = found.reports
    assert report.settings.partitions == 2
    assert report.settings.active_microbatches == 4
    assert {row.partition for row in report.rows} == {0, 1}
    assert sum(row.parameters for row in report.rows) == 6 * (64 * 64 + 64)
    expected = report.expected
    assert [visit.rank for visit in expected.way] == [0, 1]
    # A message is a microbatch's row of 64 numbers for each of 16; its gradient comes back.
    assert expected.sent_bytes == {"0-1": 4 * 16 * 64 * 4, "1-0": 4 * 16 * 64 * 4}
    assert sum(expected.standing_bytes) == 4 * 6 * (64 * 64 + 64) * 4
    assert all(p > s for p, s in zip(expected.peak_bytes, expected.standing_bytes, strict=True))
    assert "planned, not run" in str(found)
    assert len(found) == 1
    assert found[0] is report


def test_several_numbers_make_a_table(tmp_path: Path) -> None:
    found = smp.plan(_row(), (torch.randn(64, 64),), ranks=[1, 2, 3], microbatches=[2, 8])
    sizes = [(each.settings.microbatches, each.settings.partitions) for each in found.reports]
    assert sizes == [(2, 1), (2, 2), (2, 3), (8, 1), (8, 2), (8, 3)]
    lines = str(found).splitlines()
    assert len(lines) == 1 + 6 + 2
    assert lines[0].split()[:2] == ["ranks", "microbatches"]
    # More partitions need less each; one has no bubble.
    peaks = [max(each.expected.peak_bytes) for each in found.reports]
    assert peaks[0] > peaks[1] > peaks[2]
    assert found[0].expected.bubble == (0.0,)
    assert found.profile(8) is not None
    assert found.profile(4) is None


def test_a_plan_of_what_the_user_has_decided(tmp_path: Path) -> None:
    model = _row(3)
    paths = list(module_paths(model).values())
    file = str(tmp_path / "partition.json")
    places = {path: int(path == "main/2") for path in paths}
    write_partition(file, places, 2)
    config = {"partition_file": file, "load_partition": True}
    report = smp.plan(model, (torch.randn(8, 64),), ranks=2, microbatches=2, config=config)[0]
    assert {row.path: row.partition for row in report.rows if row.parameters} == {
        "main/0": 0,
        "main/1": 0,
        "main/2": 1,
    }
    by_hand = {"auto_partition": False, "default_partition": 1}
    report = smp.plan(model, (torch.randn(8, 64),), ranks=2, microbatches=2, config=by_hand)[0]
    assert {row.partition for row in report.rows if row.parameters} == {1}


def test_a_loss_with_labels_is_cut_with_the_batch() -> None:
    sizes = []

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        sizes.append((len(output), len(labels)))
        return functional.cross_entropy(output, labels)

    labels = torch.zeros(32, dtype=torch.long)
    smp.plan(_row(2), (torch.randn(32, 64),), microbatches=4, loss=loss, loss_args=(labels,))
    assert set(sizes) == {(8, 8)}


def test_refusals() -> None:
    with pytest.raises(ValueError, match="not divisible by 3"):
        smp.plan(_row(2), (torch.randn(32, 64),), microbatches=3)
    for wrong in (0, [], [2, -1], 2.5, "2"):
        for name in ("ranks", "microbatches"):
            numbers: dict[str, Any] = {name: wrong}
            with pytest.raises(ValueError, match=f"{name} is .*expected a positive integer"):
                smp.plan(_row(2), (torch.randn(32, 64),), **numbers)
    with pytest.raises(ConfigError, match="pipeline"):
        smp.plan(_row(2), (torch.randn(32, 64),), config={"pipeline": "fastest"})


def test_it_needs_no_job(alone: None) -> None:
    smp.plan(_row(2), (torch.randn(8, 64),), ranks=2, microbatches=2)
    assert not smp.is_initialized()
