# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The results of a step's microbatches as they come: kept, or added up at once.

A rank that keeps the gradients of each microbatch until the step ends needs their memory as often
as there are microbatches. Whoever knows that only the sum is used says so (`Uses`).

Source: our choice.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.containers.sums import add_up
from smdistributed.modelparallel.tensorflow.run.program import Program

__all__ = ["MOST_BYTES", "Gathered", "Uses"]

MOST_BYTES = 64 << 20
"""Of what waits to be added up: many at once take less time than one after the other."""


@dataclasses.dataclass(eq=False)
class Uses:
    """What is done with results of a step, of which sums make sense.

    It may become more from step to step, and never less.

    Attributes:
        results: their numbers, ascending: floating-point tensors of one shape in all microbatches.
        summed: those of which the sum over microbatches is used.
        single: those of which the tensor of each microbatch is used.
    """

    results: tuple[int, ...]
    summed: set[int] = dataclasses.field(default_factory=set)
    single: set[int] = dataclasses.field(default_factory=set)


class Gathered:
    """The results of a step that runs.

    Args:
        program: of this rank.
        uses: what its results are used for; None: each is used as it is.

    Attributes:
        rows: by microbatch, its results; in the place of one that nobody uses an empty tensor.
    """

    def __init__(self, program: Program, uses: Uses | None = None) -> None:
        self.rows: list[list[Any]] = [
            [None] * len(program.results) for _ in range(program.microbatches)
        ]
        self._is_plain = uses is None
        self._results = () if uses is None else uses.results
        self._summed = frozenset() if uses is None else frozenset(uses.summed)
        self._single = frozenset() if uses is None else frozenset(uses.single)
        self._watched = frozenset(self._results)
        self._empty = {each: tf.zeros([0], program.results[each].dtype) for each in self._results}
        self._sums: dict[int, Any] = {}
        self._num_added: Counter[int] = Counter()
        self._waiting_bytes = 0

    def take(self, microbatch: int, result: int, tensor: Any) -> None:
        """A result is there."""
        self.rows[microbatch][result] = tensor
        if result not in self._watched:
            return
        if result in self._summed:
            # Not by `shape`, which Python makes of each tensor anew.
            self._waiting_bytes += tensor._num_elements() * tensor.dtype.size
            if self._waiting_bytes > MOST_BYTES:
                self._add_up()
        elif result not in self._single:
            self.rows[microbatch][result] = self._empty[result]

    def all(self) -> list[list[Any]]:
        """When all are there: the rows, and if uses were told, the sums of `Uses.results`.

        In the place of a sum that nobody uses there is an empty tensor, too.
        """
        if self._is_plain:
            return self.rows
        self._add_up()
        return [*self.rows, [self._sums.get(each, self._empty[each]) for each in self._results]]

    def _add_up(self) -> None:
        """Adds up what has come, in the order of the microbatches: else bits would depend on it."""
        self._waiting_bytes = 0
        for result in self._summed:
            waiting = []
            for row in self.rows[self._num_added[result] :]:
                if row[result] is None:
                    break
                waiting.append(row[result])
                if result not in self._single:
                    row[result] = self._empty[result]
            if waiting:
                self._num_added[result] += len(waiting)
                before = [self._sums[result]] if result in self._sums else []
                self._sums[result] = add_up([*before, *waiting])
