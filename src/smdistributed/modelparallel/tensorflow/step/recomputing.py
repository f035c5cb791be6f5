# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lets a backward segment make again, just before it runs, what it needs of its rank's forward.

What it needs is made by functions of their own, one for each forward segment. TensorFlow rewrites a
function before it runs it: it puts a product, a bias and an activation into one operation, say, if
nothing else takes what is between them. The bits then depend on what else takes it. So a function
here returns all that anything else in its forward segment takes, needed or not, and the backward
segment's own function stays as it is without recomputation. Both then are rewritten as they would
be without, and have the same bits.

Source: our choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.functions import Call, SegmentFunctions
from smdistributed.modelparallel.tensorflow.graph.nodes import Node, Port, needed_ports

__all__ = ["Forward", "recomputing"]


@dataclasses.dataclass(frozen=True)
class Forward:
    """A forward segment of this rank.

    Attributes:
        name: for messages of TensorFlow.
        numbers: its operations, in an order in which they can run.
        outputs: what it gives to others.
    """

    name: str
    numbers: Sequence[int]
    outputs: Sequence[Port]


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Makes again what is needed of one forward segment."""

    call: Call
    inputs: Sequence[Port]
    outputs: Sequence[Port]


def recomputing(
    functions: SegmentFunctions,
    nodes: Sequence[Node],
    forwards: Iterable[Forward],
    again: Collection[int],
    taken: Sequence[Port],
    backward: tuple[Call, Sequence[Port], Sequence[Port]],
) -> tuple[Call, list[Port]]:
    """The function of a backward segment, and of what it makes again.

    Args:
        functions, nodes: of the traced step.
        forwards: this rank's forward segments, in an order in which they can run.
        again: operations of these that run again.
        taken: the tensors that come from other segments.
        backward: the segment's own function, what it takes, and then arguments of the step.

    Returns:
        A function that takes `taken` and then arguments of the step; these arguments.
    """
    call, inputs, arguments = backward
    needed = list(arguments)
    stages = []
    for forward in forwards:
        numbers = [each for each in forward.numbers if each in again]
        if numbers:
            stage, more = _stage(functions, nodes, forward, numbers)
            stages.append(stage)
            needed += more
    needed = list(dict.fromkeys(needed))
    place = {port: number for number, port in enumerate([*taken, *needed])}
    turns = []
    for stage in stages:
        turns.append((stage.call, [place[port] for port in stage.inputs]))
        place.update({port: len(place) + number for number, port in enumerate(stage.outputs)})
    at_last = [place[port] for port in [*inputs, *arguments]]

    def run(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        there = list(tensors)
        for make, places in turns:
            there += make([there[each] for each in places])
        return call([there[each] for each in at_last])

    return run, needed


def _stage(
    functions: SegmentFunctions, nodes: Sequence[Node], forward: Forward, numbers: list[int]
) -> tuple[_Stage, list[Port]]:
    made = set(numbers)
    others = [each for each in forward.numbers if each not in made]
    used = [*forward.outputs, *needed_ports(nodes, others)]
    outputs = [port for port in dict.fromkeys(used) if port.node in made]
    inputs = [
        port
        for port in needed_ports(nodes, numbers)
        if port.node not in made and not nodes[port.node].role.is_cloned
    ]
    call, arguments = functions.make(f"{forward.name}_again", numbers, inputs, outputs)
    return _Stage(call, [*inputs, *arguments], outputs), arguments
