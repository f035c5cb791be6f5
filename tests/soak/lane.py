# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One lane of one rank: makes the calls of a plan and checks every result."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.soak.data import check, reduced, table, tile
from tests.soak.plan import Call, LanePlan, Slot, Step

_GUARD = 17  # elements before and behind a view, which no collective may touch
_DELAYED_SHARE = 0.1  # of the steps of a rank, so that ranks come late to each other
_LONGEST_DELAY_S = 0.002


@dataclass
class Done:
    """What a lane has done, for the report."""

    calls: Counter[str] = field(default_factory=Counter)
    moved_bytes: int = 0

    def add(self, other: Done) -> None:
        self.calls.update(other.calls)
        self.moved_bytes += other.moved_bytes


@dataclass(frozen=True)
class _Pending:
    """A call under way: what to wait for, and what must hold afterwards."""

    works: list[Any]
    verify: Callable[[], None]


class Lane:
    """Carries out plans, one round after the other."""

    def __init__(self, plan: LanePlan, groups: list[Any], rank: int, delays: random.Random) -> None:
        """`groups` has a process group for each of the plan's, None where `rank` is no member."""
        self.done = Done()
        self.now = "nothing yet"  # for the message of a failure
        self._plan, self._groups, self._rank, self._delays = plan, groups, rank, delays
        self._slots: dict[int, torch.Tensor] = {}

    def run(self) -> None:
        """All steps. Raises `AssertionError` at a wrong result."""
        for index, step in enumerate(self._plan.steps):
            self.now = f"step {index}: {step}"
            self._run_step(step)
        self._slots.clear()

    def run_until(self, is_over: Callable[[], bool], steps: int) -> None:
        """The steps over and over, asking `is_over` after every `steps` of them.

        All ranks must be given the same answers. Raises what the library raises, and
        `AssertionError` at a wrong result.
        """
        try:
            for number, (index, step) in enumerate(cycle(enumerate(self._plan.steps)), start=1):
                self.now = f"step {index}: {step}"
                self._run_step(step)
                if number % steps == 0:
                    self.now = "the question whether to end"
                    if is_over():
                        return
        finally:
            self._slots.clear()

    def _run_step(self, step: Step) -> None:
        for number, slot in step.renewed:
            self._slots.pop(number, None)
            self._slots[number] = self._make_slot(slot)
        if self._delays.random() < _DELAYED_SHARE:
            time.sleep(self._delays.uniform(0.0, _LONGEST_DELAY_S))
        pending = [
            self._begin(call, is_async=len(step.calls) > 1)
            for call in step.calls
            if self._groups[call.group] is not None
        ]
        for each in pending:
            for work in each.works:
                work.wait()
        for each in pending:
            each.verify()

    def _make_slot(self, slot: Slot) -> torch.Tensor:
        dtype = getattr(torch, slot.dtype)
        home = self._groups[slot.home] if slot.home is not None else None
        if home is not None:
            memory = home.allocate_shared(slot.count * dtype.itemsize)
            if memory is not None:
                shared: torch.Tensor = memory.view(dtype)
                return shared
        return torch.empty(slot.count, dtype=dtype)

    def _begin(self, call: Call, is_async: bool) -> _Pending:
        group, ranks = self._groups[call.group], self._plan.groups[call.group]
        # Data of the average differ from those of the rest; collectives that only move take SUM's.
        op = call.op if call.collective in ("all_reduce", "reduce", "reduce_scatter") else "SUM"
        me = ranks.index(self._rank)
        tables = [table(call.seed, rank, op) for rank in range(len(ranks))]
        source, verify_guards = self._make_source(call)
        source.copy_(tile(tables[me], 0, call.count, source.dtype))
        works, verify = _Calls(call, op, group, ranks, me, tables, source, is_async).begin()
        self.done.calls[call.collective] += 1
        self.done.moved_bytes += source.numel() * source.element_size()

        def verify_all() -> None:
            verify()
            verify_guards()

        return _Pending([work for work in works if work is not None], verify_all)

    def _make_source(self, call: Call) -> tuple[torch.Tensor, Callable[[], None]]:
        """Memory of `call.count` elements, and what checks its surroundings."""
        dtype = getattr(torch, call.dtype)
        if call.slot is not None:
            return self._slots[call.slot], _nothing
        if call.memory == "foreign":
            return torch.from_numpy(np.empty(call.count, dtype=call.dtype)), _nothing
        if call.memory == "view":
            whole = torch.ones(call.count + 2 * _GUARD, dtype=dtype)

            def verify() -> None:
                for guard in (whole[:_GUARD], whole[-_GUARD:]):
                    assert bool((guard == 1).all()), f"{call} wrote beside its buffer"

            return whole[_GUARD:-_GUARD], verify
        return torch.empty(call.count, dtype=dtype), _nothing


def _nothing() -> None:
    """There is nothing to check."""


class _Calls:
    """Begins one call of torch, and knows what must come out of it."""

    def __init__(
        self,
        call: Call,
        op: str,
        group: Any,
        ranks: tuple[int, ...],
        me: int,
        tables: list[torch.Tensor],
        source: torch.Tensor,
        is_async: bool,
    ) -> None:
        self._call, self._group, self._ranks, self._me = call, group, ranks, me
        self._tables, self._source, self._op = tables, source, op
        self._options: dict[str, Any] = {"group": group, "async_op": is_async}
        self._part = call.count // len(ranks)

    def begin(self) -> tuple[Iterable[Any], Callable[[], None]]:
        """The works to wait for (None for a call that blocked), and the check for afterwards."""
        result: tuple[Iterable[Any], Callable[[], None]] = getattr(
            self, f"_{self._call.collective}"
        )()
        return result

    @property
    def _reduce_op(self) -> Any:
        return getattr(dist.ReduceOp, self._op)

    @property
    def _root(self) -> int:
        return self._ranks[self._call.root]

    @property
    def _is_root(self) -> bool:
        return self._me == self._call.root

    def _empty(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=self._source.dtype)

    def _check(self, got: torch.Tensor, period: torch.Tensor, start: int = 0) -> None:
        check(f"{self._call} on rank {self._me} of the group", got, period, start)

    def _check_source(self) -> None:
        self._check(self._source, self._tables[self._me])

    def _all_reduce(self) -> tuple[Iterable[Any], Callable[[], None]]:
        work = dist.all_reduce(self._source, self._reduce_op, **self._options)
        return [work], lambda: self._check(self._source, reduced(self._tables, self._op))

    def _reduce(self) -> tuple[Iterable[Any], Callable[[], None]]:
        work = dist.reduce(self._source, self._root, self._reduce_op, **self._options)

        def verify() -> None:
            if self._is_root:
                self._check(self._source, reduced(self._tables, self._op))

        return [work], verify

    def _broadcast(self) -> tuple[Iterable[Any], Callable[[], None]]:
        work = dist.broadcast(self._source, self._root, **self._options)
        return [work], lambda: self._check(self._source, self._tables[self._call.root])

    def _all_gather(self) -> tuple[Iterable[Any], Callable[[], None]]:
        output = self._empty(self._call.count * len(self._ranks))
        work = dist.all_gather_single(output, self._source, **self._options)

        def verify() -> None:
            for part, period in zip(output.chunk(len(self._ranks)), self._tables, strict=True):
                self._check(part, period)
            self._check_source()

        return [work], verify

    def _reduce_scatter(self) -> tuple[Iterable[Any], Callable[[], None]]:
        output = self._empty(self._part)
        work = dist.reduce_scatter_single(output, self._source, self._reduce_op, **self._options)

        def verify() -> None:
            self._check(output, reduced(self._tables, self._op), self._me * self._part)
            self._check_source()

        return [work], verify

    def _all_to_all(self) -> tuple[Iterable[Any], Callable[[], None]]:
        output = self._empty(self._call.count)
        work = dist.all_to_all_single(output, self._source, **self._options)

        def verify() -> None:
            for part, period in zip(output.chunk(len(self._ranks)), self._tables, strict=True):
                self._check(part, period, self._me * self._part)
            self._check_source()

        return [work], verify

    def _split(self, sender: int, receiver: int) -> int:
        """Elements that `sender` has for `receiver` in an uneven exchange; may be 0."""
        return (self._call.seed + 3 * sender + 5 * receiver) % (self._part + 1)

    def _all_to_all_uneven(self) -> tuple[Iterable[Any], Callable[[], None]]:
        peers = range(len(self._ranks))
        sent = [self._split(self._me, peer) for peer in peers]
        received = [self._split(peer, self._me) for peer in peers]
        output = self._empty(sum(received))
        work = dist.all_to_all_single(
            output, self._source[: sum(sent)], received, sent, **self._options
        )

        def verify() -> None:
            for peer, part in zip(peers, output.split(received), strict=True):
                start = sum(self._split(peer, other) for other in range(self._me))
                self._check(part, self._tables[peer], start)
            self._check_source()

        return [work], verify

    def _gather(self) -> tuple[Iterable[Any], Callable[[], None]]:
        parts = [self._empty(self._call.count) for _ in self._ranks] if self._is_root else None
        work = dist.gather(self._source, parts, self._root, **self._options)

        def verify() -> None:
            if parts is not None:
                for part, period in zip(parts, self._tables, strict=True):
                    self._check(part, period)
            self._check_source()

        return [work], verify

    def _scatter(self) -> tuple[Iterable[Any], Callable[[], None]]:
        output = self._empty(self._part)
        parts = list(self._source.chunk(len(self._ranks))) if self._is_root else None
        work = dist.scatter(output, parts, self._root, **self._options)

        def verify() -> None:
            self._check(output, self._tables[self._call.root], self._me * self._part)
            self._check_source()

        return [work], verify

    def _send_recv(self) -> tuple[Iterable[Any], Callable[[], None]]:
        """Each rank sends to the next and receives from the one before."""
        ranks, me = self._ranks, self._me
        output = self._empty(self._call.count)
        before = (me - 1) % len(ranks)
        works = [
            dist.isend(self._source, ranks[(me + 1) % len(ranks)], group=self._group),
            dist.irecv(output, ranks[before], group=self._group),
        ]
        if not self._options["async_op"]:
            for work in works:
                assert work is not None
                work.wait()
            works = []

        def verify() -> None:
            self._check(output, self._tables[before])
            self._check_source()

        return works, verify

    def _barrier(self) -> tuple[Iterable[Any], Callable[[], None]]:
        return [dist.barrier(**self._options)], self._check_source
