# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an observed run shows (specification, sections 3.7 and 7)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from smdistributed.modelparallel.decide import partition
from smdistributed.modelparallel.torch.partitioning import observation
from smdistributed.modelparallel.torch.partitioning.observation import (
    Observation,
    decide,
    observe,
    unobserved,
)

CPU = torch.device("cpu")


class Net(nn.Module):
    """Calls its parts in another order than it defines them, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
        self.first = nn.Linear(4, 8)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.last(x)


def _traced(model: nn.Module, *args: Tensor, is_measured: bool = False) -> Observation:
    return observe(model, args, {}, CPU, is_measured)


def _by_name(module: partition.Module) -> dict[str, partition.Module]:
    found = {module.name: module}
    for child in module.children:
        found |= _by_name(child)
    return found


def test_children_come_in_the_order_of_execution_below_who_calls_them() -> None:
    tree = _traced(Net(), torch.randn(5, 4)).tree(1)
    names = [child.name for child in tree.children]
    assert names[:4] == ["main/first", "main/blocks/0", "main/blocks/1", "main/last"]
    assert set(names[4:]) == {"main/blocks", "main/unused"}  # never called
    assert [c.name for c in _by_name(tree)["main/blocks/0"].children] == [
        "main/blocks/0/0",
        "main/blocks/0/1",
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_training_keeps_two_weights_and_two_gradients(dtype: torch.dtype) -> None:
    tree = unobserved(nn.Linear(4, 8).to(dtype), CPU).tree(1)
    assert tree.memory_bytes == (4 * 8 + 8) * (2 + 2 + 4 * 4)


def test_what_is_never_called_stays_with_who_holds_it() -> None:
    nodes = _by_name(_traced(Net(), torch.randn(5, 4)).tree(1))
    assert not nodes["main/unused"].has_parameters
    assert not nodes["main/blocks/0/1"].has_parameters
    assert nodes["main/blocks/0"].has_parameters  # by what it holds


def test_bytes_and_operations() -> None:
    tree = _traced(Net(), torch.randn(5, 4)).tree(microbatches=3)
    nodes = _by_name(tree)
    first, block = nodes["main/first"], nodes["main/blocks/0"]
    assert (first.input_bytes, first.output_bytes) == (5 * 4 * 4, 5 * 8 * 4)
    assert block.output_bytes == 2 * 5 * 8 * 4  # called twice
    assert first.memory_bytes == 4 * (4 * 8 + 8) * 4 + 3 * 5 * 8 * 4
    assert nodes["main/blocks/0/0"].seconds == pytest.approx(2 * nodes["main/blocks/1/0"].seconds)


def test_parameters_that_others_use_are_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight
            self.free = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.free(self.embedding(x)))

    class Borrows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.owner = nn.Linear(4, 4)
            self.other = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.owner(x)) @ self.owner.weight

    tied = _by_name(_traced(Tied(), torch.tensor([[1, 2]])).tree(1))
    assert tied["main/embedding"].shares & tied["main/head"].shares
    assert not tied["main/free"].shares & tied["main/head"].shares
    borrows = _by_name(_traced(Borrows(), torch.randn(2, 4)).tree(1))
    assert borrows["main"].shares & borrows["main/owner"].shares
    assert not borrows["main"].shares & borrows["main/other"].shares


def test_nothing_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    _traced(model, torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_model_is_cut_the_same_way() -> None:
    def cut() -> dict[str, int]:
        torch.manual_seed(0)
        found = _traced(Net(), torch.randn(5, 4))
        return dict(decide(found, 2, 0.8, 4).partition_of)

    assert cut() == cut()


class Block(nn.Module):
    """Norm and two layers, residual: small and large parts, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


@pytest.mark.parametrize("memory_weight", [0.2, 0.8, 1.0])
def test_blocks_are_not_cut_for_little(memory_weight: float) -> None:
    model = nn.Sequential(nn.Linear(16, 16), *(Block() for _ in range(4)), nn.Linear(16, 24))
    found = _traced(model, torch.randn(64, 16))
    places = decide(found, 4, memory_weight, 4).partition_of
    for number in range(1, 5):
        inside = {place for path, place in places.items() if path.startswith(f"main/{number}")}
        assert len(inside) == 1, places


def test_measured_times_are_of_each_module_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    class Takes(nn.Module):
        def __init__(self, seconds: float, inner: nn.Module | None = None) -> None:
            super().__init__()
            self.seconds, self.inner = seconds, inner

        def forward(self, x: Tensor) -> Tensor:
            nonlocal now_s
            now_s += self.seconds
            return x if self.inner is None else self.inner(x)

    monkeypatch.setattr(observation, "time", SimpleNamespace(perf_counter=lambda: now_s))
    inner = Takes(4.0)
    model = nn.Sequential(Takes(1.0), Takes(2.0, inner))
    costs = _traced(model, torch.randn(3, 2), is_measured=True).costs
    found = [costs[module].measured_s for module in (model, model[0], model[1], inner)]
    assert found == [0.0, 1.0, 2.0, 4.0]


def test_without_a_trace_sizes_decide() -> None:
    tree = unobserved(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 400)), CPU).tree(1)
    small, large = tree.children
    assert large.memory_bytes > small.memory_bytes
    assert large.seconds > small.seconds
    assert small.has_parameters
