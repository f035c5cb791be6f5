# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A program with every place looked up beforehand: what the driver does in a turn is indexing.

All tensors of a step on one rank lie in one list of *places*. A turn takes its inputs from it, puts
what it keeps there, and clears what nobody uses later; a message puts its tensor into
`received[edge] + microbatch`, and word that there is room into `room[source] + microbatch`.

Source: our choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from smdistributed.modelparallel.tensorflow.run.program import (
    Argument,
    Kept,
    Program,
    Received,
    SegmentCall,
    Source,
)

__all__ = ["Plan", "Turn"]


@dataclass(slots=True)
class Turn:
    """A call of a segment for a microbatch.

    Attributes:
        key: of the segment.
        inputs: places.
        awaited: those that messages fill, each with the rank that sends it.
        last: places that nobody uses afterwards.
        sends: (output, edge, destinations).
        keeps: (output, place).
        results: (output, result).
        tells_room: ranks that are told afterwards that the microbatch has ended here.
    """

    key: Hashable
    segment: SegmentCall
    call: Callable[[list[Any]], Any]
    microbatch: int
    inputs: list[int]
    awaited: list[tuple[int, int]]
    last: list[int]
    sends: list[tuple[int, int, tuple[int, ...]]]
    keeps: list[tuple[int, int]]
    results: tuple[tuple[int, int], ...]
    tells_room: tuple[int, ...] = ()


class Plan:
    """Of a program.

    Attributes:
        turns: in order.
        num_places: how many tensors are told apart; the first are the arguments, by microbatch.
        received: by edge, the place of microbatch 0, and its source.
        room: by rank, the place of microbatch 0.

    Raises:
        ValueError: a turn uses what no earlier one has kept.
    """

    def __init__(self, program: Program) -> None:
        self._num_arguments = len(program.arguments)
        self._microbatches = program.microbatches
        self._places: dict[Any, int] = {}
        self.num_places = self._num_arguments * self._microbatches
        self.received: dict[int, tuple[int, int]] = {}
        self.room: dict[int, int] = {}
        self._bound = program.bound or program.microbatches
        self.turns = [
            self._turn(key, program.segments[key], number) for key, number in program.turns
        ]
        self._find_last_uses()
        self._tell_room(program.tells_room)

    def _turn(self, key: Hashable, segment: SegmentCall, microbatch: int) -> Turn:
        inputs = [self._place(source, microbatch, segment) for source in segment.inputs]
        awaited = [
            (place, source.source)
            for place, source in zip(inputs, segment.inputs, strict=True)
            if isinstance(source, Received)
        ]
        if microbatch >= self._bound:
            awaited += [
                (self._room(rank) + microbatch - self._bound, rank) for rank in segment.awaits_room
            ]
        keeps = [(output, self._slot(slot, microbatch)) for output, slot in segment.keeps]
        sends = [(each.output, each.edge, each.destinations) for each in segment.sends]
        return Turn(
            key,
            segment,
            segment.call,
            microbatch,
            inputs,
            awaited,
            [],
            sends,
            keeps,
            segment.results,
        )

    def _place(self, source: Source, microbatch: int, segment: SegmentCall) -> int:
        if isinstance(source, Argument):
            return microbatch * self._num_arguments + source.index
        if isinstance(source, Received):
            if source.edge not in self.received:
                self.received[source.edge] = self.num_places, source.source
                self.num_places += self._microbatches
            return self.received[source.edge][0] + microbatch
        if (source, microbatch) not in self._places:
            raise ValueError(
                f"{segment.phase} of {segment.name}, microbatch {microbatch}, uses slot"
                f" {source.slot}, which no earlier turn has kept; expected one that has. This is a"
                " defect of smdistributed: please report it with this message."
            )
        return self._places[source, microbatch]

    def _room(self, rank: int) -> int:
        if rank not in self.room:
            self.room[rank] = self.num_places
            self.num_places += self._microbatches
        return self.room[rank]

    def _slot(self, slot: int, microbatch: int) -> int:
        key = Kept(slot), microbatch
        if key not in self._places:
            self._places[key] = self.num_places
            self.num_places += 1
        return self._places[key]

    def _find_last_uses(self) -> None:
        """By going back: who uses a place first on that way is the last to do so."""
        seen: defaultdict[int, bool] = defaultdict(bool)
        for turn in reversed(self.turns):
            kept = [place for _, place in turn.keeps if not seen[place]]
            turn.last = kept + [place for place in dict.fromkeys(turn.inputs) if not seen[place]]
            for place in turn.inputs:
                seen[place] = True

    def _tell_room(self, ranks: tuple[int, ...]) -> None:
        """After the last turn of each microbatch for whose end somebody may wait."""
        last = {turn.microbatch: turn for turn in self.turns}
        for microbatch, turn in last.items():
            if microbatch + self._bound < self._microbatches:
                turn.tells_room = ranks
