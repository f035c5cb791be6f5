# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What one rank does in a step: data, made by whoever has cut the graph.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from smdistributed.modelparallel.decide.schedules.ordering import Segment
from smdistributed.modelparallel.report.costs import Row

__all__ = ["Argument", "Changed", "Kept", "Program", "Received", "SegmentCall", "Send", "Source"]


@dataclass(frozen=True)
class Argument:
    """A tensor of the microbatch's arguments, by its index."""

    index: int


@dataclass(frozen=True)
class Received:
    """A tensor from another rank, of the same microbatch.

    Attributes:
        edge: its number in the program; the sender's `Send` has the same.
        source: the rank that sends it, in the group.
    """

    edge: int
    source: int


@dataclass(frozen=True)
class Kept:
    """An output that an earlier segment of the same microbatch on this rank has kept."""

    slot: int


Source = Argument | Received | Kept


@dataclass(frozen=True)
class Send:
    """An output that other ranks use.

    Attributes:
        output: its index among the segment's outputs.
        edge: its number in the program.
        destinations: ranks of the group.
    """

    output: int
    edge: int
    destinations: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SegmentCall:
    """A segment as this rank calls it, for every microbatch.

    Attributes:
        name: for messages: its layers, as "m/dense_3".
        phase: for messages: "forward" or "backward".
        partition: where it belongs.
        call: takes its inputs and returns its outputs, both eager tensors in a list.
        inputs: where each comes from.
        sends: outputs that go to other ranks.
        keeps: (output, slot): outputs that later segments use (`Kept`).
        results: (output, result): outputs that are results of the microbatch.
        awaits_room: ranks of the group that have to have ended the microbatch that lies
            `Program.bound` before; of others to which it sends this rank knows by itself.
        shares: for reports, by row, guessed seconds of its operations.
        sizes: for reports, by output, bytes of one microbatch; None if the graph does not say.
    """

    name: str
    phase: str
    partition: int
    call: Callable[[list[Any]], Sequence[Any]]
    inputs: tuple[Source, ...] = ()
    sends: tuple[Send, ...] = ()
    keeps: tuple[tuple[int, int], ...] = ()
    results: tuple[tuple[int, int], ...] = ()
    awaits_room: tuple[int, ...] = ()
    shares: tuple[tuple[str, float], ...] = ()
    sizes: tuple[int | None, ...] = ()


class Changed(Protocol):
    """A state that segments change, and that has a value, such as a `tf.Variable`."""

    def read_value(self) -> Any:
        """Its value now: an eager tensor of its own memory."""

    def assign(self, value: Any, /) -> Any:
        """Puts a value back."""


@dataclass(eq=False)
class Program:
    """Of one step function and signature, on one rank.

    Attributes:
        number: the same on all ranks of the group, and of no other program; below 2**32.
        name: for messages, the step function's.
        microbatches: how many.
        segments: by any key.
        turns: (key, microbatch): what is called, in this order.
        arguments: `tf.TensorSpec`s of the arguments of one microbatch.
        results: `tf.TensorSpec`s of the results of one microbatch on this rank.
        changed: the states that segments on this rank change: put back if the step fails.
        bound: microbatches of which a rank may hold something at a time; 0: of all.
        tells_room: ranks of the group that this one tells when it has ended a microbatch.
        graph: for reports, the segments of all ranks.
        rows: for reports, the layers.
        plan: the driver's, made when it first runs the program. Here, and not in a table of the
            driver's: a plan refers to segments, and these may to the program.
    """

    number: int
    name: str
    microbatches: int
    segments: Mapping[Hashable, SegmentCall]
    turns: Sequence[tuple[Hashable, int]]
    arguments: Sequence[Any] = ()
    results: Sequence[Any] = ()
    changed: Sequence[Changed] = ()
    bound: int = 0
    tells_room: tuple[int, ...] = ()
    graph: Sequence[Segment] = ()
    rows: Sequence[Row] = ()
    plan: Any = field(default=None, init=False, repr=False)
