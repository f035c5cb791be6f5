# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Partitioned models on a real GPU, which all ranks share: `pytest -m gpu`."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from harness import run_ranks
from parted_models import by_hand
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.multiprocess.modelparallel.equality_ranks import Case
from tests.multiprocess.modelparallel.test_equality import (
    CASES,
    DEADLINE_S,
    findings_of,
    require_nothing_wrong,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.device_count() == 0, reason="torch sees no CUDA device on this machine"
    ),
    pytest.mark.timeout(DEADLINE_S + 60),
]


@functools.cache
def _findings(ranks: int) -> dict[str, list[str]]:
    return findings_of(ranks, CASES[ranks], DEADLINE_S, "cuda")


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        pytest.param(ranks, case, id=f"{ranks}r-{case}")
        for ranks, cases in CASES.items()
        for case in cases
    ],
)
def test_equals_the_unpartitioned_model(ranks: int, case: Case) -> None:
    require_nothing_wrong(_findings(ranks), ranks, case)


WIDTH = 32
STEPS = 10


class Block(nn.Module):
    """Notes where it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seen: set[Any] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add((x.device, torch.cuda.current_device(), torch.cuda.current_stream()))
        return x + torch.tanh(self.linear(x))


def blocks(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(Block() for _ in range(6))).to(dtype)


def rows(step: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step)).to(dtype)


def _losses_of_whole(whole: nn.Module, amp: torch.dtype | None) -> list[Tensor]:
    """One process, the same microbatches; CUDA."""
    whole.cuda()
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
    dtype = next(whole.parameters()).dtype
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = []
        for part in rows(step, dtype).cuda().split(2):
            with torch.autocast("cuda", dtype=amp or torch.float16, enabled=amp is not None):
                loss = whole(part).float().pow(2).mean()
            scaler.scale(loss / 4).backward()
            parts.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        losses.append(torch.stack(parts).mean())
    return losses


def trains(rank: int, world_size: int, way: str) -> list[float]:
    import smdistributed.modelparallel.torch as smp

    amp = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(way)
    dtype = torch.float64 if amp is None else torch.float32
    smp.init(by_hand(2, 4, offload_activations=way == "offloaded"))
    assert smp.state.device == torch.device("cuda", 0)
    module = blocks(dtype)
    whole = copy.deepcopy(module)
    for number, block in enumerate(module):
        smp.set_partition(block, number // 3)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    scaler = smp.amp.GradScaler(enabled=amp is torch.float16)
    if way in ("checkpointed", "offloaded"):
        for block in module:
            smp.set_activation_checkpointing(block)

    @smp.step
    def train(model: Any, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=amp or torch.float16, enabled=amp is not None):
            loss = model(x).float().pow(2).mean()
        model.backward(scaler.scale(loss))
        return loss.detach()

    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(train(model, rows(step, dtype)).reduce_mean())
        scaler.step(optimizer)
        scaler.update()
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if amp is None else {"rtol": 2e-2, "atol": 1e-3}
    expected = _losses_of_whole(whole, amp)
    for mine, theirs in zip(losses, expected, strict=True):
        torch.testing.assert_close(mine.to(theirs), theirs, **tolerance)
    if amp is None:
        known = dict(whole.named_parameters())
        for name, parameter in model.local_named_parameters():
            assert parameter.is_cuda
            torch.testing.assert_close(parameter, known[name], rtol=1e-9, atol=1e-11)
    return [float(loss) for loss in losses]


@pytest.mark.parametrize("way", ["plain", "checkpointed", "offloaded", "fp16", "bf16"])
def test_ten_steps_equal_one_process(way: str) -> None:
    one, other = run_ranks(trains, 2, way)
    assert one == other
    assert one[-1] < one[0]


def on_a_stream(rank: int, world_size: int) -> None:
    """What the caller of a step has as its current stream its modules have, on any rank."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2, 4))
    module = blocks()
    for number, block in enumerate(module):
        smp.set_partition(block, number % 2)  # calls wait for calls: on more than one thread
    model = smp.DistributedModel(module)

    @smp.step
    def train(model: Any, x: Tensor) -> Tensor:
        loss = model(x).pow(2).mean()
        model.backward(loss)
        return loss.detach()

    train(model, rows(0))  # the first step looks at the model too
    for block in module:
        block.seen.clear()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        train(model, rows(1))
    for number, block in enumerate(module):
        expected = {(torch.device("cuda", 0), 0, stream)} if number % 2 == rank else set()
        assert block.seen == expected


def test_modules_run_on_the_stream_of_the_step() -> None:
    run_ranks(on_a_stream, 2)


def nothing_on_rank_1(rank: int, world_size: int) -> float:
    """A rank whose part has no tensors, and whose script has not used the GPU."""
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2))
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    smp.set_partition(module[0], 0)
    smp.set_partition(module[1], 1)
    model = smp.DistributedModel(module)

    @smp.step
    def train(model: Any, x: Tensor) -> Tensor:
        loss = model(x).pow(2).mean()
        model.backward(loss)
        return loss.detach()

    return float(train(model, rows(0, torch.float32)).reduce_mean())


def test_a_rank_without_parameters_works_on_the_gpu_too() -> None:
    one, other = run_ranks(nothing_on_rank_1, 2)
    assert one == other
    assert 0 < one < 1


class Lengths(nn.Module):
    """Sorts rows by length, and looks at lengths, which are numbers of the CPU's."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, packed: PackedSequence, lengths: Tensor) -> tuple[Tensor, Tensor]:
        assert packed.data.is_cuda
        assert packed.batch_sizes.is_cpu
        assert lengths.is_cpu
        padded, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return padded, lengths + 1


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.lengths = Lengths()

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.tensor([4, 2], device="cpu")
        packed = pack_padded_sequence(self.first(x), lengths, batch_first=True)
        padded, more = self.lengths(packed, lengths)
        assert padded.is_cuda
        assert more.is_cpu
        assert more.tolist() == [5, 3]
        return padded


def lengths_on_cpu(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(by_hand(2))
    torch.manual_seed(1)
    module = Sequences()
    whole = copy.deepcopy(module).cuda()
    smp.set_partition(module.lengths, 1)
    model = smp.DistributedModel(module)

    @smp.step
    def train(model: Any, x: Tensor) -> Tensor:
        loss = model(x).pow(2).mean()
        model.backward(loss)
        return loss.detach()

    x = torch.randn(4, 4, WIDTH, generator=torch.Generator().manual_seed(2))
    for part in x.cuda().split(2):
        (whole(part).pow(2).mean() / 2).backward()
    train(model, x)
    known = dict(whole.named_parameters())
    for name, parameter in model.local_named_parameters():
        torch.testing.assert_close(parameter.grad, known[name].grad, rtol=1e-4, atol=1e-6)


def test_what_is_in_cpu_memory_on_purpose_stays_there() -> None:
    run_ranks(lengths_on_cpu, 2)
