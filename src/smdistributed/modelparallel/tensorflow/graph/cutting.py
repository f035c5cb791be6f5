# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Cuts a traced step into segments: what each rank runs, in which pieces, and what it sends.

A *copy* is a node on a rank. A node of a partition has one copy, on its rank; a node outside of the
model has one on every rank that needs it. A tensor that a rank needs and has not is an *edge*: one
tensor to one rank, sent once.

A copy's *phase* is forward or backward: backward is what needs a gradient. Its *level* counts the
edges on the longest way to it. Copies of one rank, phase and level are a *segment*: one function,
called once for each microbatch. All that a segment needs has come before it begins, and what it
sends goes when it ends. So with two partitions

    rank 0: forward 0                         (1) forward 2 (loss), backward 2
    rank 1:           forward 1, backward 1

(1): if the step returns the loss there. What is cheap is not sent from segment to segment but made
again: see `Role`. If the step recomputes, so is before a backward segment all that it needs of its
rank's forward, from what came from other ranks; only what cannot run again (`Node.can_run_again`)
is kept. Segments, and what they wait for, are the same with and without.

Every rank finds the same plan for all ranks, as all have the same nodes and know what each wants.

Source: TensorFlow modelparallel specification, section 3; our choice.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.tensorflow.graph.nodes import (
    EFFECTS,
    EVERYWHERE,
    Node,
    Port,
    ancestors,
    chain_of,
    needed_ports,
)

__all__ = ["Again", "Edge", "Plan", "Segment", "SegmentKey", "StateCrossing", "cut", "phases_of"]


class SegmentKey(NamedTuple):
    """Which segment; in this order a rank can run those of one microbatch."""

    level: int
    phase_order: int  # forward comes first
    rank: int

    @property
    def phase(self) -> Phase:
        """Forward or backward."""
        return Phase.BACKWARD if self.phase_order else Phase.FORWARD

    def __str__(self) -> str:
        return f"{self.phase.value}{self.level}@{self.rank}"


class Edge(NamedTuple):
    """A tensor that goes to another rank."""

    port: Port
    source: int
    destination: int


@dataclasses.dataclass
class Again:
    """What a rank runs once more before a backward segment.

    Attributes:
        nodes: of forward segments, in an order in which they can run.
        inputs: tensors that these need from other segments.
        outputs: inputs of the backward segment that these make.
    """

    nodes: list[int]
    inputs: list[Port]
    outputs: list[Port]


@dataclasses.dataclass
class Segment:
    """What a rank runs in one go.

    Attributes:
        nodes: in an order in which they can run; those that are cloned are not among them.
        inputs: tensors that it needs from other segments, by port.
        again: if it recomputes, what makes some of these.
        outputs: ports of its nodes, or of its inputs, that others need or that are wanted.
        waits_for: segments that come before it, on this or on other ranks.
        follows: segments of this rank that touch a state which it touches as well, and one changes:
            they have to run for a microbatch before this one does for the next.
    """

    key: SegmentKey
    nodes: list[int] = dataclasses.field(default_factory=list)
    inputs: list[Port] = dataclasses.field(default_factory=list)
    again: Again | None = None
    outputs: list[Port] = dataclasses.field(default_factory=list)
    waits_for: set[SegmentKey] = dataclasses.field(default_factory=set)
    follows: set[SegmentKey] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Plan:
    """The cut.

    Attributes:
        segments: in the order of their keys, of all ranks.
        edges: by number; the same on all ranks.
        segment_of: by port and rank, the segment after which the tensor is there.
    """

    segments: dict[SegmentKey, Segment]
    edges: list[Edge]
    segment_of: dict[tuple[Port, int], SegmentKey]


class StateCrossing(ValueError):
    """A state is touched in the forward and changed in the backward pass, or the other way."""

    def __init__(self, state: Hashable, one: int, other: int) -> None:
        super().__init__(state, one, other)
        self.state = state
        self.one = one
        self.other = other


def phases_of(nodes: Sequence[Node]) -> list[Phase]:
    """By node. Backward is what was made by taking gradients, and what needs such a thing.

    But for what the forward needs (loops remember values for their gradients), and for shapes of
    tensors that the backward needs nothing else of: else these would be kept for it.
    """
    gradients = [number for number, node in enumerate(nodes) if node.is_gradient]
    if not gradients:
        return [Phase.FORWARD] * len(nodes)
    made_before = ancestors(nodes, range(gradients[0]))
    is_backward = [False] * len(nodes)
    for number in _in_order(nodes):
        node = nodes[number]
        is_backward[number] = number not in made_before and (
            node.is_gradient or any(is_backward[port.node] for port in node.inputs)
        )
    _take_shapes_early(nodes, is_backward)
    return [Phase.BACKWARD if each else Phase.FORWARD for each in is_backward]


def _take_shapes_early(nodes: Sequence[Node], is_backward: list[bool]) -> None:
    needed_whole = {
        port
        for number, node in enumerate(nodes)
        if is_backward[number] and not node.takes_shape
        for port in node.inputs
    }
    for number, node in enumerate(nodes):
        if is_backward[number] and node.takes_shape:
            (port,) = node.inputs
            if not is_backward[port.node] and port not in needed_whole:
                is_backward[number] = False


def _in_order(nodes: Sequence[Node]) -> Iterator[int]:
    """All numbers, needed ones first, else ascending: gradients of loops change older nodes."""
    waiting = [len({port.node for port in node.inputs}) for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for needed in {port.node for port in node.inputs}:
            users[needed].append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    while ready:
        number = heapq.heappop(ready)
        yield number
        for user in users[number]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)


def cut(
    nodes: Sequence[Node], ranks: int, wanted: Sequence[Sequence[Port]], recomputes: bool = False
) -> Plan:
    """Cuts the nodes for all ranks of a pipeline.

    Args:
        nodes: the step, for one microbatch.
        ranks: partitions; the home of a node is its rank.
        wanted: by rank, tensors that are to be there, such as what its step returns.
        recomputes: backward segments run again what they need of the forward.

    Raises:
        StateCrossing: the order of microbatches would count for a state.
    """
    return _Cut(nodes, ranks, wanted, recomputes).plan()


class _Copy(NamedTuple):
    node: int
    rank: int


class _Cut:
    def __init__(
        self,
        nodes: Sequence[Node],
        ranks: int,
        wanted: Sequence[Sequence[Port]],
        recomputes: bool,
    ) -> None:
        self._recomputes = recomputes
        self._nodes = nodes
        self._ranks = ranks
        self._wanted = wanted
        self._rank_of_node = [list[int]() for _ in nodes]  # where copies are
        self._edges: dict[tuple[Port, int], int] = {}  # destination: source
        self._together: list[list[_Copy]] = []  # copies that touch a state that one of them changes
        self._order = list(_in_order(nodes))
        self._phases = phases_of(nodes)
        self._level_of: Mapping[_Copy, int] = {}

    def plan(self) -> Plan:
        self._place_copies()
        chained = self._chains()
        levels = self._levels(chained)
        self._sink(levels, chained)
        return self._assembled(levels, chained)

    # ---- what runs where ---------------------------------------------------------------------

    def _place_copies(self) -> None:
        """From what is wanted back to all that it needs."""
        seen: set[_Copy] = set()
        stack: list[_Copy] = []

        def need(port: Port, rank: int) -> None:
            node = self._nodes[port.node]
            if node.role.is_cloned or node.home in (EVERYWHERE, rank):
                stack.append(_Copy(port.node, rank))
            else:
                self._edges[port, rank] = node.home
                stack.append(_Copy(port.node, node.home))

        for rank, ports in enumerate(self._wanted):
            for port in ports:
                need(port, rank)
        for number, node in enumerate(self._nodes):
            if node.must_run:
                homes = range(self._ranks) if node.home == EVERYWHERE else (node.home,)
                stack.extend(_Copy(number, rank) for rank in homes)
        while stack:
            copy = stack.pop()
            if copy in seen:
                continue
            seen.add(copy)
            self._rank_of_node[copy.node].append(copy.rank)
            for port in self._nodes[copy.node].inputs:
                need(port, copy.rank)

    def _copies(self) -> Iterator[_Copy]:
        """Of nodes that are not cloned, needed ones first."""
        for number in self._order:
            if not self._nodes[number].role.is_cloned:
                for rank in sorted(self._rank_of_node[number]):
                    yield _Copy(number, rank)

    # ---- the order of what touches a state ---------------------------------------------------

    def _chains(self) -> dict[_Copy, list[_Copy]]:
        """By copy, those that have to come before it: as the program was written."""
        touching: dict[tuple[Hashable, Phase, int], list[_Copy]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            if node.role.is_cloned:
                continue
            for state in sorted(node.reads | node.changes, key=repr):
                for rank in self._rank_of_node[number]:
                    touching[state, self._phases[number], rank].append(_Copy(number, rank))
        before: dict[_Copy, list[_Copy]] = defaultdict(list)
        for (state, phase, rank), copies in touching.items():
            if any(state in self._nodes[copy.node].changes for copy in copies):
                other = Phase.BACKWARD if phase is Phase.FORWARD else Phase.FORWARD
                if state is not EFFECTS and (state, other, rank) in touching:
                    across = touching[state, other, rank]
                    raise StateCrossing(state, copies[0].node, across[0].node)
                touched = ((copy, state in self._nodes[copy.node].changes) for copy in copies)
                for earlier, later in chain_of(touched):
                    before[later].append(earlier)
                if state is not EFFECTS:
                    self._together.append(copies)
        return before

    # ---- levels ------------------------------------------------------------------------------

    def _levels(self, chained: Mapping[_Copy, Sequence[_Copy]]) -> dict[_Copy, int]:
        levels: dict[_Copy, int] = {}
        for copy in self._copies_in_order(chained):
            own = [levels[before] for before in chained.get(copy, ())]
            for port in self._nodes[copy.node].inputs:
                if self._nodes[port.node].role.is_cloned:
                    continue
                source = self._edges.get((port, copy.rank))
                if source is None:
                    own.append(levels[_Copy(port.node, copy.rank)])
                else:
                    own.append(levels[_Copy(port.node, source)] + 1)
            levels[copy] = max(own, default=0)
        return levels

    def _copies_in_order(self, chained: Mapping[_Copy, Sequence[_Copy]]) -> list[_Copy]:
        """Such that what a copy needs, and what has to come before it, is before it."""
        if not chained:
            return list(self._copies())
        position = {copy: place for place, copy in enumerate(self._copies())}
        waiting: dict[_Copy, int] = {}
        users: dict[_Copy, list[_Copy]] = defaultdict(list)
        for copy in position:
            needed = set(chained.get(copy, ())) | set(self._needed(copy))
            waiting[copy] = len(needed)
            for each in needed:
                users[each].append(copy)
        ready = [(position[copy], copy) for copy, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, copy = heapq.heappop(ready)
            ordered.append(copy)
            for user in users[copy]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (position[user], user))
        assert len(ordered) == len(position), "operations need each other"
        return ordered

    def _needed(self, copy: _Copy) -> Iterator[_Copy]:
        for port in self._nodes[copy.node].inputs:
            if not self._nodes[port.node].role.is_cloned:
                yield _Copy(port.node, self._edges.get((port, copy.rank), copy.rank))

    def _sink(self, levels: dict[_Copy, int], chained: Mapping[_Copy, Sequence[_Copy]]) -> None:
        """What is needed on its own rank and in its phase alone, and later, runs later.

        The conversion of labels, say, runs with the loss, and not in a segment of its own before.
        """
        stays = {
            _Copy(port.node, rank) for rank, ports in enumerate(self._wanted) for port in ports
        }
        first_use: dict[_Copy, int] = {}  # in its own phase
        first_use_later: dict[_Copy, int] = {}  # in the other
        for copy in reversed(self._copies_in_order(chained)):
            use = first_use.get(copy)
            if use is not None and copy not in stays and not self._nodes[copy.node].must_run:
                levels[copy] = max(levels[copy], min(use, first_use_later.get(copy, use)))
            for needed in itertools.chain(self._needed(copy), chained.get(copy, ())):
                if needed.rank != copy.rank:
                    stays.add(needed)
                    continue
                is_near = self._phases[needed.node] is self._phases[copy.node]
                uses = first_use if is_near else first_use_later
                uses[needed] = min(uses.get(needed, levels[copy]), levels[copy])

    # ---- segments ----------------------------------------------------------------------------

    def _assembled(
        self, levels: Mapping[_Copy, int], chained: Mapping[_Copy, Sequence[_Copy]]
    ) -> Plan:
        self._level_of = levels
        segments: dict[SegmentKey, Segment] = {}
        for copy in self._copies_in_order(chained):
            key = self._key_of(copy)
            segments.setdefault(key, Segment(key)).nodes.append(copy.node)
        needed = {
            key: list(needed_ports(self._nodes, each.nodes)) for key, each in segments.items()
        }
        segment_of = {}
        for port, rank in self._wanted_ports():
            if not self._nodes[port.node].role.is_cloned:
                key = segment_of[port, rank] = self._arrival(port, rank)
                segments.setdefault(key, Segment(key)).outputs.append(port)
                needed.setdefault(key, []).append(port)
        for rank in set(range(self._ranks)) - {key.rank for key in segments}:
            key = SegmentKey(0, 0, rank)  # for what it makes of its arguments alone
            segments[key] = Segment(key)
        for port, rank in self._wanted_ports():
            if self._nodes[port.node].role.is_cloned:  # any will do
                key = segment_of[port, rank] = min(each for each in segments if each.rank == rank)
                segments[key].outputs.append(port)
                needed.setdefault(key, []).append(port)
        for key, ports in needed.items():
            self._connect(segments, segments[key], ports)
        if self._recomputes:
            for segment in segments.values():
                self._run_again(segments, segment)
        for copy, before in chained.items():
            mine = segments[self._key_of(copy)]
            mine.waits_for |= {self._key_of(each) for each in before} - {mine.key}
        for copies in self._together:
            keys = {self._key_of(copy) for copy in copies}
            for key in keys:
                segments[key].follows |= keys - {key}
        edges = sorted(
            Edge(port, source, destination) for (port, destination), source in self._edges.items()
        )
        return Plan(dict(sorted(segments.items())), edges, segment_of)

    def _key_of(self, copy: _Copy) -> SegmentKey:
        is_backward = self._phases[copy.node] is Phase.BACKWARD
        return SegmentKey(self._level_of[copy], int(is_backward), copy.rank)

    def _wanted_ports(self) -> Iterator[tuple[Port, int]]:
        for rank, ports in enumerate(self._wanted):
            for port in dict.fromkeys(ports):
                yield port, rank

    def _arrival(self, port: Port, rank: int) -> SegmentKey:
        """The first segment of a rank in which a tensor can be there."""
        source = self._edges.get((port, rank))
        if source is None:
            return self._key_of(_Copy(port.node, rank))
        sent = self._key_of(_Copy(port.node, source))
        return SegmentKey(sent.level + 1, sent.phase_order, rank)

    def _connect(
        self, segments: Mapping[SegmentKey, Segment], mine: Segment, ports: Iterable[Port]
    ) -> None:
        """Where a segment gets what it needs, and what that has to give."""
        for port in dict.fromkeys(ports):
            if self._nodes[port.node].role.is_cloned:
                continue
            giver = segments[self._giver(port, mine.key.rank)]
            if giver is mine:
                continue
            mine.inputs.append(port)
            mine.waits_for.add(giver.key)
            if port not in giver.outputs:
                giver.outputs.append(port)

    def _giver(self, port: Port, rank: int) -> SegmentKey:
        return self._key_of(_Copy(port.node, self._edges.get((port, rank), rank)))

    # ---- what runs again ---------------------------------------------------------------------

    def _run_again(self, segments: Mapping[SegmentKey, Segment], mine: Segment) -> None:
        """Lets a backward segment's rank make again what that needs of the forward there."""
        if mine.key.phase is Phase.FORWARD:
            return
        rank = mine.key.rank
        outputs = [port for port in mine.inputs if self._runs_again(port, rank)]
        again: set[int] = set()
        inputs: dict[Port, None] = {}
        stack = list(outputs)
        while stack:
            port = stack.pop()
            if not self._runs_again(port, rank):
                inputs[port] = None
            elif port.node not in again:
                again.add(port.node)
                needed = needed_ports(self._nodes, [port.node])
                stack += [each for each in needed if not self._nodes[each.node].role.is_cloned]
        if not again:
            return
        for port in inputs:
            giver = segments[self._giver(port, rank)]
            if port not in giver.outputs:
                giver.outputs.append(port)
        nodes = [number for number in self._order if number in again]
        mine.again = Again(nodes, sorted(inputs), outputs)

    def _runs_again(self, port: Port, rank: int) -> bool:
        is_of_forward = self._phases[port.node] is Phase.FORWARD
        is_made_here = (port, rank) not in self._edges
        return is_of_forward and is_made_here and self._nodes[port.node].can_run_again
