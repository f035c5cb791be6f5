# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank did in a step, and what it held meanwhile; kept where somebody asks for it.

Source: our choice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable
from typing import Any, NamedTuple

from smdistributed.modelparallel.tensorflow.run.plan import Turn
from smdistributed.modelparallel.tensorflow.run.program import Program

__all__ = ["Ran", "StepRecord", "nbytes_of"]


class Ran(NamedTuple):
    """A segment that ran for a microbatch.

    Attributes:
        segment: its key in the program.
        begin_s, end_s: by `time.monotonic`; its inputs were there when it began, and when it ended
            all that it sends was on its way.
    """

    segment: Hashable
    microbatch: int
    begin_s: float
    end_s: float


class StepRecord:
    """Of one step on one rank.

    What is *held* of a microbatch are outputs of segments that later ones use, and tensors that
    have come from other ranks, from their arrival on. Not among it are arguments, which are there
    before the step, results, which are there after it, and what lives in one segment alone. Of a
    list of tensors, or of strings, the memory that it refers to is not counted.

    Args:
        program: that runs.
        is_first: it has not run before.

    Attributes:
        program, is_first: these.
        number: of the step, the same on all ranks, when it has ended.
        begin_s, told_s, end_s: by `time.monotonic`: of the whole; of the end of the last turn, when
            this rank tells the others of it. No rank ends before all have told.
        turns: in order.
        sent: by destination, and whether it is a tensor or word of room: messages and bytes.
        sizes: by segment and output, bytes of those of which the graph does not say how many.
        peak_bytes: held at a time.
        peak_bytes_of_one: held of one microbatch at a time.
        peak_microbatches: of which something was held, or which had begun here and not ended.
    """

    def __init__(self, program: Program, is_first: bool = False) -> None:
        self.program = program
        self.is_first = is_first
        self.number = 0
        self.begin_s = self.told_s = self.end_s = time.monotonic()
        self.sent: dict[tuple[int, str], list[int]] = {}
        self.sizes: dict[tuple[Hashable, int], int] = {}
        self.turns: list[Ran] = []
        self.peak_bytes = 0
        self.peak_bytes_of_one = 0
        self.peak_microbatches = 0
        self._turns_left = Counter(microbatch for _, microbatch in program.turns)
        self._num_turns = dict(self._turns_left)
        self._bytes_in: dict[int, int] = {}  # by place
        self._bytes_of: Counter[int] = Counter()  # by microbatch
        self._reasons: Counter[int] = Counter()  # by microbatch, why it counts
        self._turn_began_s = 0.0

    def begin(self, turn: Turn) -> None:
        """A turn begins."""
        microbatch = turn.microbatch
        if self._turns_left[microbatch] == self._num_turns[microbatch]:
            self._add_reason(microbatch)
        self._turn_began_s = time.monotonic()

    def end(self, turn: Turn, outputs: Any) -> None:
        """It has run, and sent; what it keeps is not yet in its place."""
        microbatch = turn.microbatch
        self.turns.append(Ran(turn.key, microbatch, self._turn_began_s, time.monotonic()))
        for output, size in enumerate(turn.segment.sizes):
            if size is None:
                self.sizes[turn.key, output] = nbytes_of(outputs[output])
        for output, place in turn.keeps:
            self.hold(place, microbatch, nbytes_of(outputs[output]))
        for place in turn.last:
            self._let_go(place, microbatch)
        self._turns_left[microbatch] -= 1
        if not self._turns_left[microbatch]:
            self._remove_reason(microbatch)

    def send(self, destination: int, kind: str, nbytes: int) -> None:
        """A message is on its way."""
        figures = self.sent.setdefault((destination, kind), [0, 0])
        figures[0] += 1
        figures[1] += nbytes

    def has_told(self) -> None:
        """All turns have run."""
        self.told_s = time.monotonic()

    def has_ended(self, number: int) -> None:
        """So have those of all ranks."""
        self.number = number
        self.end_s = time.monotonic()

    def hold(self, place: int, microbatch: int, nbytes: int) -> None:
        """A tensor is in a place from now on."""
        self._bytes_in[place] = nbytes
        self._bytes_of[microbatch] += nbytes
        self.peak_bytes_of_one = max(self.peak_bytes_of_one, self._bytes_of[microbatch])
        self.peak_bytes = max(self.peak_bytes, self._bytes_of.total())
        self._add_reason(microbatch)

    def _let_go(self, place: int, microbatch: int) -> None:
        if place in self._bytes_in:  # else it is an argument
            self._bytes_of[microbatch] -= self._bytes_in.pop(place)
            self._remove_reason(microbatch)

    def _add_reason(self, microbatch: int) -> None:
        self._reasons[microbatch] += 1
        self.peak_microbatches = max(self.peak_microbatches, len(self._reasons))

    def _remove_reason(self, microbatch: int) -> None:
        self._reasons[microbatch] -= 1
        if not self._reasons[microbatch]:
            del self._reasons[microbatch]


def nbytes_of(tensor: Any) -> int:
    """Of an eager tensor."""
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)
