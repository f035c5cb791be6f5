# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Random collectives for a long time: are results right to the end, and does nothing grow?

    smddprun -np 4 python -m tests.soak.run --minutes 30

Every rank derives the same plan from the seed. In each round process groups are made, two lanes
(threads with groups of their own) work at the same time, every result is compared with one that a
single process computes. Beside them a thread holds addresses in the ways that docs/zero_copy.md
allows, while it reduces what lies next to them. Then groups and buffers are dropped, and what each
rank still holds is measured. Time decides only how many rounds there are. A failure names seed and
round; `--seed S --first R --rounds 1` makes that round again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from smdistributed.dataparallel.torch import empty_shared, zero_copy_statistics
from tests.multiprocess.address_holders import ROWS, Holders
from tests.soak.data import MAX_RANKS
from tests.soak.lane import Done, Lane
from tests.soak.plan import LANES, plan_lane
from tests.soak.usage import MIB, Usage, growth, measure

STEPS_PER_ROUND = 60
ROWS_PER_ROUND = 2
_TIMEOUT = timedelta(seconds=120)
_REPORT_EVERY_S = 60.0


class Soak:
    """The rounds of one rank, and what they came to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._seed: int = arguments.seed
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._done = Done()
        self._groups_made = 0
        # Of those who hold addresses, from the first round to the last.
        ranks = tuple(range(self._world_size))
        self._holding, self._gloo = _new_group(ranks), _new_group(ranks, "gloo")
        self._held: Counter[str] = Counter()
        self._history: list[list[Usage]] = [[] for _ in range(self._world_size)]
        self._begin = time.monotonic()
        self._reported = 0.0  # seconds after the begin

    def run(self, seconds: float, first: int, rounds: int | None) -> str | None:
        """Rounds until the time or their number is used up; what grew, or None."""
        number = first
        while True:
            self._round(number)
            number += 1
            usages: list[Any] = [None] * self._world_size
            dist.all_gather_object(usages, measure())
            for history, usage in zip(self._history, usages, strict=True):
                history.append(usage)
            grown = self._grown()
            # Rank 0's clock counts, so that all ranks end with the same round.
            elapsed = torch.tensor(time.monotonic() - self._begin, dtype=torch.float64)
            dist.broadcast(elapsed, 0)
            is_last = float(elapsed) >= seconds if rounds is None else number >= first + rounds
            if is_last or grown or float(elapsed) - self._reported >= _REPORT_EVERY_S:
                self._reported = float(elapsed)
                self._report(number - first, float(elapsed))
            if is_last or grown:
                return grown

    def _round(self, number: int) -> None:
        plans = [
            plan_lane(self._seed, number, lane, self._world_size, STEPS_PER_ROUND)
            for lane in range(LANES)
        ]
        # One group lives from the first round to the last, and with it its shared memory.
        kept = {(0, 0): dist.group.WORLD}
        groups = [
            [kept.get((lane, n)) or _new_group(ranks) for n, ranks in enumerate(plan.groups)]
            for lane, plan in enumerate(plans)
        ]
        lanes = []
        for index, plan in enumerate(plans):
            delays = random.Random(f"{self._seed}/{number}/{index}/{self._rank}")
            lanes.append(Lane(plan, groups[index], self._rank, delays))
        threads = [
            threading.Thread(target=self._run_lane, args=(lane, number, index))
            for index, lane in enumerate(lanes)
        ]
        threads.append(threading.Thread(target=self._hold_addresses, args=(number,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for lane in lanes:
            self._done.add(lane.done)
        for group in (group for several in groups for group in several):
            if group is not None and group is not dist.group.WORLD:
                self._groups_made += 1
                dist.destroy_process_group(group)

    def _run_lane(self, lane: Lane, number: int, index: int) -> None:
        try:
            lane.run()
        except BaseException:
            self._fail(number, f"lane {index}, {lane.now}")

    def _fail(self, number: int, where: str) -> NoReturn:
        traceback.print_exc()
        print(
            f"soak failed: rank {self._rank}, seed {self._seed}, round {number}, {where}. Repeat it"
            f" with --seed {self._seed} --first {number} --rounds 1.",
            file=sys.stderr,
            flush=True,
        )
        # The other threads and the other ranks wait for this one: let them see that it is gone.
        os._exit(1)

    def _hold_addresses(self, number: int) -> None:
        rows = random.Random(f"{self._seed}/{number}/addresses")  # the same on all ranks
        for _ in range(ROWS_PER_ROUND):
            name, is_shared = rows.choice(sorted(ROWS)), rows.random() < 0.5
            make = partial(empty_shared, group=self._holding) if is_shared else torch.empty
            try:
                ROWS[name](Holders(make, self._holding, self._gloo))
            except BaseException:
                self._fail(number, f"{name}, {'shared' if is_shared else 'ordinary'} memory")
            self._held[name] += 1

    def _grown(self) -> str | None:
        for rank, history in enumerate(self._history):
            words = growth(history)
            if words is not None:
                return f"rank {rank}: {words}"
        return None

    def _report(self, rounds: int, elapsed: float) -> None:
        if self._rank != 0:
            return
        calls, moved = sum(self._done.calls.values()), self._done.moved_bytes / 2**30
        print(
            f"{elapsed / 60:6.1f} min, {rounds} rounds; rank 0: {calls} collectives on"
            f" {moved:.1f} GiB, {zero_copy_statistics().shared} shared tensors"
        )
        print("  rank  private MiB  shared MiB  descriptors  threads")
        for rank, history in enumerate(self._history):
            usage = history[-1]
            print(
                f"  {rank:4}  {usage.private_bytes / MIB:11.0f}  {usage.shared_bytes / MIB:10.0f}"
                f"  {usage.descriptors:11}  {usage.threads:7}"
            )
        sys.stdout.flush()

    def summary(self) -> str:
        """What rank 0 did, in words."""
        minutes = (time.monotonic() - self._begin) / 60
        counts = ", ".join(f"{name} {count}" for name, count in self._done.calls.most_common())
        return (
            f"soak passed: {minutes:.1f} min, {self._world_size} ranks, seed {self._seed}:"
            f" {len(self._history[0])} rounds with {self._groups_made} groups on rank 0, which made"
            f" {sum(self._done.calls.values())} collectives ({counts}) on"
            f" {self._done.moved_bytes / 2**30:.1f} GiB and used"
            f" {zero_copy_statistics().shared} shared tensors, and held addresses"
            f" ({', '.join(f'{name} {count}' for name, count in self._held.most_common())});"
            " every result was right and nothing grew"
        )


def _new_group(ranks: tuple[int, ...], backend: str | None = None) -> Any:
    """A group of `ranks`; None on the others. All ranks call it."""
    group = dist.new_group(list(ranks), timeout=_TIMEOUT, backend=backend)
    return group if dist.get_rank() in ranks else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Random collectives for a long time; start it with smddprun."
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the plan (default 1)")
    parser.add_argument("--first", type=int, default=0, metavar="ROUND", help="number to begin at")
    parser.add_argument("--rounds", type=int, help="how many, whatever time they take")
    return parser.parse_args()


def main() -> int:
    """One rank; the exit status is 0 if all results were right and nothing grew."""
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)

    arguments = _parse()
    torch.set_num_threads(1)
    dist.init_process_group("smddp", timeout=_TIMEOUT)
    if not 2 <= dist.get_world_size() <= MAX_RANKS:
        print(
            f"the soak was started with {dist.get_world_size()} ranks; expected 2 to {MAX_RANKS},"
            f" for which its data are exact. Start it with smddprun -np {MAX_RANKS}.",
            file=sys.stderr,
        )
        return 2
    soak = Soak(arguments)
    grown = soak.run(arguments.minutes * 60, arguments.first, arguments.rounds)
    if dist.get_rank() == 0:
        print(f"soak failed: {grown}" if grown else soak.summary(), flush=True)
    dist.destroy_process_group()
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
