# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The order of collectives in graphs of TensorFlow 1, where TensorFlow itself keeps none.

What one `session.run` asks for runs in the order in which it was made: each collective waits for
the one of its lane (`backend.lane_of`) before it, by a control dependency. A control dependency
also brings along what it points to: who fetches the later collective alone gets the earlier one as
well. That must do no harm. So the earlier one may need nothing that the later one does not need
anyway of what has to be fed, or is used up by being read (`_sources`): else the metric of an
evaluation would take a batch from the training data. Two collectives that are not ordered for that
reason, and are fetched together, run in any order. Should that be another one on another rank, all
ranks are told: the number of a collective among those of its group in the graph is a part of its
label.

Operations in the branches and loops of TensorFlow 1's control flow are ordered within theirs. So
are the gradients of those in a branch: TensorFlow makes them outside of it, but they are dead if
the branch is not taken, and what waits for a dead operation is dead as well.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["Place", "as_gradient_of", "number_in", "place_in"]

# No string: TensorFlow would write it into checkpoints, and warn that it cannot.
_MADE = ("smddp_collectives",)
# Of operations that have a state, those that may run once more: ours, random numbers, variables.
_HARMLESS = (
    "Smddp",
    "Random",
    "VarHandle",
    "Variable",
    "ReadVariable",
    "ResourceGather",
    "Multinomial",
    "TruncatedNormal",
)
_FED = ("Placeholder",)
# Of TensorFlow 1's control flow, the branch of the operation whose gradient is being made.
_branch: contextvars.ContextVar[Any] = contextvars.ContextVar("smddp_branch", default=None)


@dataclasses.dataclass
class _Collective:
    """One that was made: its results, what it needs, and the branch or loop that it is in."""

    group: int
    lane: int
    results: list[Any]
    sources: frozenset[str]
    context: Any


class Place:
    """Where an operation that is about to be made stands among the others of its graph."""

    def __init__(
        self, graph: Any, tensors: Sequence[Any], *, group: int, lane: int, is_alone: bool
    ) -> None:
        self._group, self._lane = group, lane
        self._made: list[_Collective] = graph.get_collection_ref(_MADE)
        self._context = graph._get_control_flow_context(), _branch.get()
        self._is_alone = is_alone
        self._sources = _sources(tensors, self._made)
        self.waits_for: list[Any] = []
        for before in reversed([] if is_alone else self._made):
            is_in_line = before.lane == lane and before.context == self._context
            if is_in_line and before.sources <= self._sources:
                self.waits_for = before.results[:1]
                self._sources |= before.sources
                break

    def note(self, results: Sequence[Any]) -> None:
        """The operation has been made, and these are its results."""
        if self._is_alone:
            return
        # What its caller has chained it to comes along with it as well.
        known = {result.op.name: each.sources for each in self._made for result in each.results}
        made = {_collective_of(result.op) for result in results}
        for before in {each for operation in made for each in operation.control_inputs}:
            self._sources |= known.get(before.name, frozenset())
        self._made.append(
            _Collective(self._group, self._lane, list(results), self._sources, self._context)
        )


@contextlib.contextmanager
def as_gradient_of(operation: Any) -> Iterator[None]:
    """What is made in this block is dead if an operation in a branch is."""
    is_in_graph = isinstance(operation, tf.Operation)  # an eager tape has something like it
    around = operation._get_control_flow_context() if is_in_graph else None
    before = _branch.set(around if around is not None and around.IsCondContext() else None)
    try:
        yield
    finally:
        _branch.reset(before)


def place_in(graph: Any, tensors: Sequence[Any], *, group: int, lane: int, is_alone: bool) -> Place:
    """The place of an operation on these tensors.

    Args:
        graph: of TensorFlow 1, which is the one that is being built.
        group: the number of its group.
        lane: what it is to be in order with.
        is_alone: it is run by itself, before all others, and brings nothing along: the
            broadcast of variables.
    """
    return Place(graph, tensors, group=group, lane=lane, is_alone=is_alone)


def _collective_of(operation: Any) -> Any:
    """What the results come from: its ticket says so, where they are handed on."""
    return operation.inputs[0].op if operation.type == "SmddpSettle" else operation


def number_in(graph: Any, group: int) -> int:
    """How many of a group have been made in the graph: the same on ranks that build the same."""
    return sum(each.group == group for each in graph.get_collection_ref(_MADE))


def _sources(tensors: Sequence[Any], made: Sequence[_Collective]) -> frozenset[str]:
    """Names of what must be fed for these tensors, or what their computation uses up."""
    known = {result.op.name: each.sources for each in made for result in each.results}
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [tensor.op for tensor in tensors if isinstance(tensor, tf.Tensor)]
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.name in known:
            found |= known[operation.name]
            continue
        if _is_source(operation):
            found.add(operation.name)
        waiting += [each.op for each in operation.inputs]
        waiting += operation.control_inputs
    return frozenset(found)


def _is_source(operation: Any) -> bool:
    kind: str = operation.type
    if kind.startswith(_FED):
        return True
    return bool(operation.op_def.is_stateful) and not kind.startswith(_HARMLESS)
