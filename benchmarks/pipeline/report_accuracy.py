# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How well `smp.plan()` predicts what `smp.report()` then measures: bubble and memory.

    smddprun -np 2 python benchmarks/pipeline/report_accuracy.py

Trains GPTs on 2 ranks, cut in the middle and far from it, each in a process group of its own. For
each rank: the bubble as planned before (one process, its own times), as the schedule leads to with
the times of the steps themselves, and as measured; the peak of memory as planned, as it follows
from the order of the measured step, and as measured.
Leave the machine alone meanwhile. The plan is made while the other rank waits.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from models import SHAPES, Gpt, batch_of, loss_of
from torch import Tensor

import smdistributed.modelparallel.torch as smp

# Blocks on rank 0, of all.
CUTS = {"balanced": 0.5, "unbalanced": 0.75}


def measure(
    name: str, cut: float, shape_name: str, microbatches: int, steps: int
) -> list[list[str]]:
    """One model: rows of figures, one for each rank."""
    shape = SHAPES[shape_name]
    smp.init(
        {
            "partitions": 2,
            "microbatches": microbatches,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net = Gpt(shape)
    for number, block in enumerate(net.blocks):
        smp.set_partition(block, int(number >= cut * shape.blocks))
    for part in (net.norm, net.head):
        smp.set_partition(part, 1)
    tokens, targets = batch_of(shape, microbatches)
    plan = None
    if smp.rank() == 0:
        plan = smp.plan(
            net,
            (tokens,),
            ranks=2,
            microbatches=microbatches,
            loss=loss_of,
            loss_args=(targets,),
            config={"auto_partition": False, "default_partition": 0},
        )
    smp.barrier()
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))

    @smp.step
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model(x), y)
        model.backward(loss)
        return loss

    def step() -> None:
        optimizer.zero_grad()
        train(tokens, targets)
        optimizer.step()

    for _ in range(3):
        step()
    with smp.recording():
        for _ in range(steps + 1):
            step()
    report = smp.report(plan)
    rows = []
    if plan is not None:
        measured, planned = report.measured, plan[0].expected
        assert measured is not None
        for rank in range(2):
            memory = measured.memory[rank]
            peak = None if memory is None else memory.peak
            figures = [
                (planned.bubble[rank], report.expected.bubble[rank], measured.bubble[rank], 100),
                (planned.peak_bytes[rank], report.expected.peak_bytes[rank], peak, 1e-6),
            ]
            row = [name, str(microbatches), str(rank)]
            for before, after, found, factor in figures:
                row += [f"{before * factor:.1f}", f"{after * factor:.1f}"]
                if found is None:
                    row += ["-", "-"]
                else:
                    row += [f"{found * factor:.1f}", f"{before / found:.2f} {after / found:.2f}"]
            rows.append(row)
        print(report)
    smp.reset()
    return rows


def main() -> None:
    """All cases; rank 0 prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="gpt-8")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        row
        for name, cut in CUTS.items()
        for microbatches in arguments.microbatches
        for row in measure(name, cut, arguments.shape, microbatches, arguments.steps)
    ]
    if rows:
        print("model, microbatches, rank; bubble in %: planned, by the schedule with measured")
        print("times, measured, ratios of the first two to the third; memory in MB: planned, by")
        print("the order of the measured step, measured, and the same ratios")
        for row in rows:
            print("".join(cell.rjust(12) for cell in row))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
