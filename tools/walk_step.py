# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Follows one step of a pipeline through the code: how many calls, and how often back and forth.

    smddprun -np 2 python tools/walk_step.py            # the figures
    smddprun -np 2 python tools/walk_step.py --calls    # and each call, in order

Two modules, one on each rank, and two microbatches. The fourth step is followed: the first ones
place the model and learn what modules return. Counted are calls of functions (lambdas, and
resumptions of generators with a name, too) of `smdistributed.modelparallel`, on all threads. A
*room* is a file. A *return* is a call into a room that the walk was in before and had left.
"""

from __future__ import annotations

import argparse
import collections
import sys
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import smdistributed.modelparallel.torch as smp

STEPS = 4
_MARK = "smdistributed/modelparallel/"


class Walk:
    """What the functions of this rank do while it is recorded."""

    def __init__(self) -> None:
        self.is_recorded = False
        self.calls: list[tuple[str, str]] = []
        self._rooms: dict[str, str] = {}

    def _room(self, path: str) -> str:
        room = self._rooms.get(path)
        if room is None:
            room = path.rpartition(_MARK)[2] if _MARK in path else ""
            self._rooms[path] = room
        return room

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Of `sys.setprofile`."""
        # A comprehension is a part of its function; from Python 3.12 on it is no call either.
        is_function = not frame.f_code.co_name.endswith(("comp>", "<genexpr>"))
        if self.is_recorded and event == "call" and is_function:
            room = self._room(frame.f_code.co_filename)
            if room:
                self.calls.append((room, frame.f_code.co_qualname))


def returns(calls: list[tuple[str, str]]) -> int:
    """How often a call leads to a room that the walk was in before and had left."""
    seen: set[str] = set()
    count = 0
    here = ""
    for room, _ in calls:
        if room != here:
            count += room in seen
            seen.add(room)
            here = room
    return count


class Net(nn.Module):
    """One module here, one there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The second of the first."""
        result: Tensor = self.second(self.first(x))
        return result


def main() -> None:
    """Runs the steps on this rank, and prints on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", action="store_true", help="print each call in order")
    arguments = parser.parse_args()
    walk = Walk()
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    config = {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0}
    smp.init(config)
    torch.manual_seed(0)
    net = Net()
    smp.set_partition(net.second, 1)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        model.backward(loss)
        return loss.detach()

    x, y = torch.ones(4, 8), torch.ones(4, 1)
    for number in range(STEPS):
        optimizer.zero_grad()
        dist.barrier()
        walk.is_recorded = number == STEPS - 1
        train(x, y)
        walk.is_recorded = False
        optimizer.step()
    sys.setprofile(None)
    found: list[Any] = [None] * smp.size()
    dist.all_gather_object(found, walk.calls)
    if smp.rank() == 0:
        report(found, arguments.calls)


def report(found: list[Any], shows_calls: bool) -> None:
    """Prints the figures of all ranks."""
    rooms: collections.Counter[str] = collections.Counter()
    total = [0, 0]
    for rank, calls in enumerate(found):
        rooms.update(room for room, _ in calls)
        back = returns(calls)
        total[0] += len(calls)
        total[1] += back
        print(f"rank {rank}: {len(calls)} calls, {back} returns to a room already left")
        if shows_calls:
            for room, name in calls:
                print(f"    {room:55} {name}")
    print(f"together: {total[0]} calls in {len(rooms)} rooms, {total[1]} returns")
    for room, count in rooms.most_common():
        print(f"    {count:5}  {room}")


if __name__ == "__main__":
    main()
