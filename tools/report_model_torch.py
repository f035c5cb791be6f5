# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The GPT of `draw_report.py` with PyTorch: some steps of it, and their report."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.report.document import Report

__all__ = ["train"]

WIDTH, LENGTH, SEQUENCES, VOCABULARY, BLOCKS = 256, 128, 2, 16384, 8
MICROBATCHES = 8


class Block(nn.Module):
    """Attention and a network of two layers, both residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, length, width] to the same."""
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


def make_model() -> nn.Sequential:
    """Embedding, blocks, head; named, so that a report can be read."""
    torch.manual_seed(0)
    parts: dict[str, nn.Module] = {"words": nn.Embedding(VOCABULARY, WIDTH)}
    parts |= {f"block_{number}": Block() for number in range(BLOCKS)}
    parts["norm"] = nn.LayerNorm(WIDTH)
    parts["head"] = nn.Linear(WIDTH, VOCABULARY, bias=False)
    model = nn.Sequential()
    for name, part in parts.items():
        model.add_module(name, part)
    return model


def train(places: Mapping[str, int]) -> Report:
    """Some steps with modules where `places` says."""
    torch.set_num_threads(1)
    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    net = make_model()
    for name, place in places.items():
        smp.set_partition(net.get_submodule(name), place)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(
        0, VOCABULARY, (MICROBATCHES * SEQUENCES, LENGTH + 1), generator=generator
    )
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    plan = None
    if smp.rank() == 0:
        plan = smp.plan(
            net,
            (inputs,),
            ranks=2,
            microbatches=MICROBATCHES,
            loss=loss_of,
            loss_args=(targets,),
            config={"auto_partition": False, "default_partition": 0},
        )
    smp.barrier()
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))

    @smp.step
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model(x), y)
        model.backward(loss)
        return loss

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            step(inputs, targets)
            optimizer.step()

    steps(2)
    with smp.recording():
        steps(8)
    report = smp.report(plan)
    smp.reset()
    return report
