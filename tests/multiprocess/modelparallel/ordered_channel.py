# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A channel whose messages come in an order that a test decides, the same in every run.

What a runner does depends on other ranks only through `next_message()`: which message it gets,
or that none has come yet. So one rank runs at a time, from one such call to the next, and whoever
makes the call decides which rank goes on, and with what: any message that is on its way to it and
the oldest from its source, or nothing if the rank only looks. In this way everything that could
happen between processes, fast, slow or stopped for a while, can be made to happen, and a seed names
one such course of events.

Only the order is ours: messages go through the real channel, and who gets one is told its source.

The right to run is a *baton*, a datagram, which carries all that there is to know: what each rank
asks for, and what is on its way. If nobody can go on, all ranks raise `Stuck`, at once, with what
they wait for: a test of a hang needs no timeout.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import socket
import sys
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from machine_speed import scaled

__all__ = ["Order", "OrderedChannel", "RandomOrder", "Stuck", "Turn", "others_first", "others_last"]

# A course of events that is longer does not come to an end.
_MOST_TURNS = 100_000
_SHOWN_HISTORY = 240  # characters
_ARRIVAL_S = scaled(30.0)  # of what has been posted, through a channel that works


class Stuck(AssertionError):
    """No rank can ever go on."""


class Turn(NamedTuple):
    """A rank goes on: with the oldest message of `source`, or without any (None)."""

    rank: int
    source: int | None


# Decides: takes one of the turns that are possible.
Order = Callable[[Sequence[Turn]], Turn]


def others_first(rank: int) -> Order:
    """`rank` goes on when nobody else can, and with a message if there is one: it is late."""

    def order(turns: Sequence[Turn]) -> Turn:
        return min(turns, key=lambda turn: (turn.rank == rank, turn.source is None, turn))

    return order


def others_last(rank: int) -> Order:
    """`rank` goes on as long as it can; and without a message, if it may."""

    def order(turns: Sequence[Turn]) -> Turn:
        return min(turns, key=lambda turn: (turn.rank != rank, turn.source is not None, turn))

    return order


class RandomOrder:
    """Ranks that are fast and slow, and lanes between them: drawn, and again drawn now and then.

    All the same would be a dull network: hardly a message would be overtaken by more than one.
    """

    _PACES = (0.01, 0.1, 1.0, 10.0)
    _CHANGE = 0.02  # how likely a pace changes before a turn

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._paces: dict[tuple[int, int | None], float] = {}

    def __call__(self, turns: Sequence[Turn]) -> Turn:
        if self._random.random() < self._CHANGE:
            self._paces.clear()
        return self._random.choices(turns, [self._pace(turn) for turn in turns])[0]

    def _pace(self, turn: Turn) -> float:
        rank = self._drawn((turn.rank, -1))  # of the rank itself
        return rank * self._drawn((turn.rank, turn.source))

    def _drawn(self, key: tuple[int, int | None]) -> float:
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = self._random.choice(self._PACES)
        return pace


@dataclasses.dataclass
class _Baton:
    """All that there is to know. `asks` is None for a rank that has ended its run."""

    asks: list[str | None]
    lanes: dict[tuple[int, int], int]  # (source, dest): messages on their way
    turn: Turn
    is_stuck: bool = False
    is_over: bool = False  # a run before was stuck
    num_turns: int = 0
    digest: int = 0
    history: str = ""  # rank<source, the last turns


class OrderedChannel:
    """In front of one rank's channel.

    Between `begin()` and `end()`, a *run*, a rank must wait for others in `next_message()` only.
    All ranks make the same runs. What is on its way at the end of a run comes in the next one.

    Args:
        channel: the real one.
        folder: of the ranks' sockets; the same on all of them.
    """

    def __init__(self, channel: Any, rank: int, size: int, folder: str) -> None:
        self._channel = channel
        self._rank = rank
        self._size = size
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._address(rank))
        self._baton: _Baton | None = None
        self._came: dict[int, deque[Any]] = {source: deque() for source in range(size)}
        self._order: Order = others_first(rank)
        # What this rank waits for, in words; for people who look into a rank that is stuck.
        self.describe: Callable[[], str] = str
        if rank == 0:
            self._baton = _Baton([None] * size, {}, Turn(0, None))

    def _address(self, rank: int) -> str:
        return os.path.join(self._folder, f"rank{rank}")

    # --- runs ------------------------------------------------------------------------------------

    def begin(self, order: Order) -> None:
        """Begins a run. `order` is asked on the rank that stops; it may be another one on each."""
        self._order = order
        if self._rank > 0:
            self._baton = self._received()
            return
        if self._baton is None:  # it was left with this rank by the last one of the run before
            self._baton = self._received()
        before = self._baton
        self._baton = _Baton(["to begin"] * self._size, before.lanes, Turn(0, None))
        self._baton.is_over = before.is_over or before.is_stuck
        self._go_on("to begin")

    @property
    def is_over(self) -> bool:
        """In a run: whether one before was stuck. Then ranks have lost touch with one another."""
        assert self._baton is not None
        return self._baton.is_over

    def end(self) -> int:
        """Ends it. Returns: a number that is the same for the same course of events up to here."""
        assert self._baton is not None
        digest = self._baton.digest
        self._baton.asks[self._rank] = None
        if any(self._baton.asks):
            self._pass_on(self._decided())
        elif self._rank > 0:
            self._pass_on(Turn(0, None))
        return digest

    # --- what runners call ------------------------------------------------------------------------

    def post_message(self, dest: int, header: bytes, segments: Sequence[tuple[int, int]]) -> None:
        """Posts it: from now on it may come."""
        assert self._baton is not None
        self._channel.post_message(dest, header, segments)
        lane = self._rank, dest
        self._baton.lanes[lane] = self._baton.lanes.get(lane, 0) + 1

    def next_message(self, timeout_s: float) -> Any:
        """A message, or None; decided by the order. A wait ends with a message only."""
        turn = self._go_on("whether a message has come" if timeout_s == 0 else "a message")
        if turn.source is None:
            return None
        return self._taken(turn.source)

    def abort(self, reason: str) -> None:
        """As the channel does."""
        self._channel.abort(reason)

    # --- the baton -------------------------------------------------------------------------------

    def _go_on(self, asks: str) -> Turn:
        """Lets whoever is next go on; returns when it is this rank."""
        baton = self._baton
        assert baton is not None
        baton.asks[self._rank] = asks
        turn = self._decided()
        if turn.rank != self._rank:
            self._pass_on(turn)
            baton = self._baton = self._received()
        if baton.is_stuck:
            raise Stuck(self._state_in_words(baton))
        return baton.turn

    def _decided(self) -> Turn:
        """Whose turn it is."""
        baton = self._baton
        assert baton is not None
        turns = [
            Turn(dest, source)
            for (source, dest), count in sorted(baton.lanes.items())
            if count and baton.asks[dest] in ("a message", "whether a message has come")
        ]
        looks = ("to begin", "whether a message has come")
        turns += [Turn(rank, None) for rank in range(self._size) if baton.asks[rank] in looks]
        baton.num_turns += 1
        baton.is_stuck = baton.is_stuck or not turns or baton.num_turns > _MOST_TURNS
        if baton.is_stuck:
            others = ((self._rank + 1 + n) % self._size for n in range(self._size))
            turn = next(Turn(rank, None) for rank in others if baton.asks[rank])
        else:
            turn = self._order(turns)
        if turn.source is not None:
            baton.lanes[turn.source, turn.rank] -= 1
        baton.turn = turn
        shown = f" {turn.rank}<{'-' if turn.source is None else turn.source}"
        baton.digest = zlib.crc32(shown.encode(), baton.digest)
        baton.history = (baton.history + shown)[-_SHOWN_HISTORY:]
        return turn

    def _pass_on(self, turn: Turn) -> None:
        self._socket.sendto(pickle.dumps(self._baton), self._address(turn.rank))
        self._baton = None

    def _received(self) -> _Baton:
        baton: _Baton = pickle.loads(self._socket.recv(1 << 16))
        return baton

    def _taken(self, source: int) -> Any:
        """The oldest message of a source: it has been posted, so it is here soon."""
        while not self._came[source]:
            message = self._channel.next_message(_ARRIVAL_S)
            assert message is not None, f"what rank {source} has posted does not arrive"
            self._came[message.source].append(message)
        return self._came[source].popleft()

    def _state_in_words(self, baton: _Baton) -> str:
        asks = [f"rank {rank}: {what or 'has ended'}" for rank, what in enumerate(baton.asks)]
        lanes = [f"{s} to {d}: {n}" for (s, d), n in sorted(baton.lanes.items()) if n]
        stacks = "".join(
            f"\nthread {number}\n{''.join(traceback.format_stack(frame))}"
            for number, frame in sys._current_frames().items()
        )
        return (
            f"no rank can go on, or there is no end of it, after {baton.num_turns} turns."
            f" What they ask for: {'; '.join(asks)}. Messages on their way: {'; '.join(lanes)}."
            f" Rank {self._rank} waits for: {self.describe()}."
            f" The last turns (rank<source):{baton.history}.{stacks}"
        )
