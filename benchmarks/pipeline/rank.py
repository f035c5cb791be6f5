# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark: every column's step, one after the other, round by round.

Started by run.py under smddprun. Rank 0 prints its findings as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import torch
import torch.distributed as dist
from common.rounds import in_turn
from models import SHAPES, Gpt, Shape, Stage, batch_of, loss_of
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.decide.schedules import SCHEDULES

# A step, and what it returns on rank 0: the mean loss if it is known there.
Step = Callable[[], float]

WARM_UP = 3
CALLS = 200


def smp_step(shape: Shape, microbatches: int) -> Step:
    """Ours, cut by hand where torch's stages are cut."""
    model = _model(shape)
    size = shape.blocks // smp.pp_size()
    for number, block in enumerate(model.blocks):
        smp.set_partition(block, number // size)
    for part in (model.norm, model.head):
        smp.set_partition(part, smp.pp_size() - 1)
    whole = smp.DistributedModel(model)
    tokens, targets = batch_of(shape, microbatches)

    @smp.step
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(whole(x), y)
        whole.backward(loss)
        return loss

    def step() -> float:
        whole.zero_grad()
        return float(train(tokens, targets).reduce_mean())

    return step


def torch_step(kind: Any, shape: Shape, microbatches: int, group: Any) -> Step:
    """torch.distributed.pipelining over Gloo."""
    index, count = smp.pp_rank(), smp.pp_size()
    part = Stage(_model(shape), index, count)
    stage = PipelineStage(part, index, count, torch.device("cpu"), group=group)
    schedule = kind(stage, microbatches, loss_fn=loss_of)
    tokens, targets = batch_of(shape, microbatches)

    def step() -> float:
        part.zero_grad()
        losses: list[Tensor] = []
        if index == 0:
            schedule.step(tokens)
        elif index == count - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    return step


def stage_work(shape: Shape) -> Step:
    """Forward and backward of this rank's stage for one microbatch, without messages."""
    index, count = smp.pp_rank(), smp.pp_size()
    part = Stage(_model(shape), index, count)
    tokens, targets = batch_of(shape, 1)
    hidden = (shape.sequences, shape.length, shape.width)
    came, gradient = torch.randn(hidden), torch.randn(hidden)

    def step() -> float:
        came.requires_grad_()
        came.grad = None
        result = part(tokens if index == 0 else came)
        if index == count - 1:
            loss_of(result, targets).backward()
        else:
            result.backward(gradient)
        return 0.0

    return step


def _model(shape: Shape) -> Gpt:
    torch.manual_seed(0)
    return Gpt(shape)


def _seconds_by_rank(step: Step, repeats: int) -> list[float]:
    """Of a step; all ranks begin together."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    mine = torch.tensor([(time.perf_counter() - begin) / repeats], dtype=torch.float64)
    gathered = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    return [float(each) for each in gathered]


def measure_steps(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every column in turn, in an order that goes on by one each round."""
    shape, microbatches = SHAPES[arguments.shape], arguments.microbatches
    group = dist.new_group(backend="gloo")
    steps: dict[str, Step] = {
        "smp": smp_step(shape, microbatches),
        "1f1b": torch_step(Schedule1F1B, shape, microbatches, group),
        "gpipe": torch_step(ScheduleGPipe, shape, microbatches, group),
    }
    stage = stage_work(shape)
    for step in (*steps.values(), stage):
        for _ in range(WARM_UP):
            step()
    losses = {name: torch.tensor(step()) for name, step in steps.items()}
    for loss in losses.values():  # torch's is known to the last rank alone
        dist.all_reduce(loss, dist.ReduceOp.MAX)
    longest = max(max(_seconds_by_rank(step, 2)) for step in steps.values())
    repeats = max(1, round(arguments.turn_ms / 1e3 / longest))
    turns: dict[str, list[float]] = {name: [] for name in (*steps, "ideal", "stage")}
    names = list(steps)
    for number in range(arguments.rounds):
        for name in in_turn(names, number):
            turns[name].append(max(_seconds_by_rank(steps[name], repeats)))
        seconds = _seconds_by_rank(stage, max(1, repeats * microbatches // 2))
        turns["ideal"].append(sum(seconds) + (microbatches - 1) * max(seconds))
        turns["stage"].append(max(seconds))
    return {"repeats": repeats, "losses": {n: float(v) for n, v in losses.items()}, "turns": turns}


def measure_memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """How much each rank's peak grows over what it held before the first step."""
    step = smp_step(SHAPES[arguments.shape], arguments.microbatches)
    before = _peak_bytes()
    for _ in range(WARM_UP):
        step()
    grown = torch.tensor([_peak_bytes() - before], dtype=torch.int64)
    gathered = [torch.zeros_like(grown) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, grown)
    return {"active": arguments.active, "grown_bytes": [int(each) for each in gathered]}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Echo(nn.Module):
    """Returns what it gets, and has a parameter, so that it lives somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape."""
        return x * self.weight


class Echoes(nn.Module):
    """Calls a module on the last rank, and looks at what it returns before it calls again."""

    def __init__(self) -> None:
        super().__init__()
        self.echo = Echo()

    def forward(self, x: Tensor, count: int) -> Tensor:
        """`count` round trips."""
        for _ in range(count):
            x = self.echo(x).cpu()
        return x


def measure_calls(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one call of a module on another rank, there and back, by bytes each way."""
    model = Echoes()
    smp.set_partition(model.echo, smp.pp_size() - 1)
    whole = smp.DistributedModel(model)

    @smp.step(non_split_inputs=["x", "count"])
    def call(x: Tensor, count: int) -> None:
        whole(x, count)

    found: dict[str, list[float]] = {}
    with torch.no_grad():
        for num_bytes in (32, 256 << 10):
            x = torch.zeros(num_bytes // 4)
            call(x, CALLS)
            seconds = found[str(num_bytes)] = []
            for _ in range(arguments.rounds):
                dist.barrier()
                begin = time.perf_counter()
                call(x, CALLS)
                seconds.append((time.perf_counter() - begin) / CALLS)
    return {"call_s": found}


MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "steps": measure_steps,
    "memory": measure_memory,
    "calls": measure_calls,
}


def main() -> None:
    """Measures one case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=tuple(MEASURES), required=True)
    parser.add_argument("--pipeline", choices=tuple(SCHEDULES), default="interleaved")
    parser.add_argument("--shape", choices=SHAPES, default="gpt-4")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--active", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn-ms", type=float, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config: dict[str, Any] = {
        "partitions": int(os.environ["WORLD_SIZE"]),
        "microbatches": arguments.microbatches,
        "pipeline": arguments.pipeline,
        "auto_partition": False,
        "default_partition": 0,
    }
    if arguments.active:
        config["active_microbatches"] = arguments.active
    smp.init(config)
    found = MEASURES[arguments.what](arguments)
    if smp.rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
