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
        begin_s, end_s: by `time.monotonic`. Between two of them the rank waits for others: a turn
            begins where the one before has ended, or when what it waits for has come; it ends when
            all that it sends is on its way, and what nobody uses any more is gone.
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

    In the step it is only noted what happens, which costs a turn some microseconds; it is counted
    when the step has ended.

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
        peak_bytes: held at a time, when the step has ended.
        peak_bytes_of_one: held of one microbatch at a time, likewise.
        peak_microbatches: of which something was held, or which had begun here and not ended,
            likewise.
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
        self._held = _Held(program)
        self._noted: list[tuple[Any, ...]] = []  # what to call of it, in order, with arguments
        self._turn_began_s = self.begin_s

    def has_waited(self) -> None:
        """What the next turn has waited for has come."""
        self._turn_began_s = time.monotonic()

    def begin(self, turn: Turn) -> None:
        """A turn has its inputs."""
        self._noted.append((self._held.begin, turn))

    def made(self, turn: Turn, outputs: Any) -> None:
        """It has run, and sent; what it keeps is not yet in its place."""
        for output, size in enumerate(turn.segment.sizes):
            if size is None:
                self.sizes[turn.key, output] = nbytes_of(outputs[output])
        for output, place in turn.keeps:
            self.hold(place, turn.microbatch, nbytes_of(outputs[output]))

    def end(self, turn: Turn) -> None:
        """Nothing of it is left to do."""
        self._noted.append((self._held.end, turn))
        now_s = time.monotonic()
        self.turns.append(Ran(turn.key, turn.microbatch, self._turn_began_s, now_s))
        self._turn_began_s = now_s

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
        for count, *arguments in self._noted:
            count(*arguments)
        self._noted.clear()
        self.peak_bytes = self._held.peak_bytes
        self.peak_bytes_of_one = self._held.peak_bytes_of_one
        self.peak_microbatches = self._held.peak_microbatches

    def hold(self, place: int, microbatch: int, nbytes: int) -> None:
        """A tensor is in a place from now on."""
        self._noted.append((self._held.hold, place, microbatch, nbytes))


class _Held:
    """What a rank holds of microbatches, and the most of it at a time; see `StepRecord`."""

    def __init__(self, program: Program) -> None:
        self.peak_bytes = 0
        self.peak_bytes_of_one = 0
        self.peak_microbatches = 0
        self._turns_left = Counter(microbatch for _, microbatch in program.turns)
        self._num_turns = dict(self._turns_left)
        self._bytes_in: dict[int, int] = {}  # by place
        self._bytes_of: Counter[int] = Counter()  # by microbatch
        self._bytes = 0
        self._reasons: Counter[int] = Counter()  # by microbatch, why it counts

    def begin(self, turn: Turn) -> None:
        microbatch = turn.microbatch
        if self._turns_left[microbatch] == self._num_turns[microbatch]:
            self._add_reason(microbatch)

    def end(self, turn: Turn) -> None:
        microbatch = turn.microbatch
        for place in turn.last:
            self._let_go(place, microbatch)
        self._turns_left[microbatch] -= 1
        if not self._turns_left[microbatch]:
            self._remove_reason(microbatch)

    def hold(self, place: int, microbatch: int, nbytes: int) -> None:
        self._bytes_in[place] = nbytes
        self._bytes_of[microbatch] += nbytes
        self._bytes += nbytes
        self.peak_bytes_of_one = max(self.peak_bytes_of_one, self._bytes_of[microbatch])
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        self._add_reason(microbatch)

    def _let_go(self, place: int, microbatch: int) -> None:
        if place in self._bytes_in:  # else it is an argument
            nbytes = self._bytes_in.pop(place)
            self._bytes_of[microbatch] -= nbytes
            self._bytes -= nbytes
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
    # As `shape.num_elements()`, which takes four times as long; a step asks for all that it keeps.
    return int(tensor._num_elements()) * int(tensor.dtype.size)
