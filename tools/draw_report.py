# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes what docs/pipeline_report.md shows: a model that is cut badly, and the same after the fix.

    smddprun -np 2 python tools/draw_report.py [FOLDER]

Trains a GPT whose head is as much work as several of its blocks, cut in the middle of its blocks;
then moves what the report says. Prints both reports, and draws `pipeline_report_before.png` and
`pipeline_report_after.png` into docs/assets. Needs matplotlib and two processors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.report.advice import better_moves
from smdistributed.modelparallel.report.document import Report

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
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


def main() -> None:
    """Draws both pictures where the documentation shows them, or into the folder that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS
    torch.set_num_threads(1)
    names = [f"block_{number}" for number in range(BLOCKS)]
    places = {name: int(number >= BLOCKS // 2) for number, name in enumerate(names)}
    places |= {"norm": 1, "head": 1}
    before = train(places)
    moves, _ = better_moves(before.settings, before.rows)
    places |= {move.path.removeprefix("main/"): move.dest for move in moves}
    after = train(places)
    if os.environ["RANK"] == "0":
        for name, report in (("before", before), ("after", after)):
            print(f"--- {name} ---\n{report}\n")
            report.draw(folder / f"pipeline_report_{name}.png")


if __name__ == "__main__":
    main()
