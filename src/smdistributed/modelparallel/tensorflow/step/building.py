# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From a traced step to the program of one rank.

The common part of the graph (`graph.canonical`) is cut alike on all ranks. What is this rank's own,
what it makes of results, then joins the segments after which all that it needs is there.

Source: TensorFlow modelparallel specification, section 3.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.schedules import ordering, schedule_named
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Schedule
from smdistributed.modelparallel.report.costs import Row
from smdistributed.modelparallel.tensorflow.graph.canonical import Common
from smdistributed.modelparallel.tensorflow.graph.costs import Costs
from smdistributed.modelparallel.tensorflow.graph.cutting import Again, Segment, SegmentKey, cut
from smdistributed.modelparallel.tensorflow.graph.functions import SegmentFunctions
from smdistributed.modelparallel.tensorflow.graph.nodes import (
    EFFECTS,
    EVERYWHERE,
    Node,
    Port,
    Role,
    ancestors,
)
from smdistributed.modelparallel.tensorflow.graph.reading import Reader
from smdistributed.modelparallel.tensorflow.graph.rows import LayerRows, size_bytes
from smdistributed.modelparallel.tensorflow.run.program import (
    Argument,
    Kept,
    Program,
    Received,
    SegmentCall,
    Send,
    Source,
)
from smdistributed.modelparallel.tensorflow.step.recomputing import Forward, recomputing

__all__ = ["Own", "State", "build", "own_everywhere", "own_part"]

_CALL_S = 1e-4  # to call a segment's function


class State:
    """A variable that segments use, by its handle alone: whoever made it may be gone.

    Attributes:
        handle: of the resource.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        described = getattr(handle, "_handle_data", None)
        self._dtype = None
        if described is not None and described.is_set and described.shape_and_type:
            self._dtype = tf.dtypes.as_dtype(described.shape_and_type[0].dtype)

    def is_variable(self) -> bool:
        """Whether it has a value that can be read and put back; a table, say, has not."""
        return self._dtype is not None

    def read_value(self) -> tf.Tensor:
        """Its value now."""
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)
        return tf.raw_ops.DeepCopy(x=value)  # an assignment may write into the same memory

    def assign(self, value: tf.Tensor) -> None:
        """Puts a value back."""
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


@dataclasses.dataclass(frozen=True)
class Own:
    """What of a rank's graph is its own.

    Attributes:
        numbers: its operations, ascending.
        wanted: tensors of the common part that they need, or that the step returns here.
    """

    numbers: list[int]
    wanted: list[Port]


def own_everywhere(nodes: Sequence[Node], common: Common) -> list[Node]:
    """The nodes, those that are not common without a home: nobody makes them for another rank."""
    shared = set(common.numbers)
    return [
        node
        if number in shared or node.home == EVERYWHERE
        else dataclasses.replace(
            node,
            home=EVERYWHERE,
            role=Role.PLAIN if node.role is Role.FREE else node.role,
        )
        for number, node in enumerate(nodes)
    ]


def own_part(nodes: Sequence[Node], common: Common, returned: Iterable[Port]) -> Own:
    """Finds it.

    Args:
        nodes: of this rank's graph; homes do not count.
        common: the part that all ranks have.
        returned: tensors that the step returns here.
    """
    returned = list(returned)
    shared = set(common.numbers)
    roots = [port.node for port in returned]
    roots += [number for number, node in enumerate(nodes) if node.must_run and number not in shared]
    numbers = sorted(ancestors(nodes, roots) - shared)
    needed = [port for number in numbers for port in nodes[number].inputs] + returned
    wanted = [
        port
        for port in dict.fromkeys(needed)
        if port.node in shared and nodes[port.node].role not in (Role.ARGUMENT, Role.HANDLE)
    ]
    return Own([each for each in numbers if not nodes[each].role.is_cloned], wanted)


@dataclasses.dataclass
class _Part:
    """A segment of this rank, in numbers of its own graph; see `Segment`."""

    key: SegmentKey
    numbers: list[int]
    inputs: list[Port]
    outputs: list[Port]
    again: Again | None

    def taken(self) -> list[Port]:
        """The tensors that it gets from other segments, and does not make again."""
        if self.again is None:
            return self.inputs
        made = set(self.again.outputs)
        left = [port for port in self.inputs if port not in made]
        return list(dict.fromkeys([*left, *self.again.inputs]))

    def all_numbers(self) -> list[int]:
        """Of what runs, again included."""
        return self.numbers if self.again is None else [*self.again.nodes, *self.numbers]


class _Builder:
    """Builds the program of one rank.

    Args:
        reader, nodes: of its graph.
        common: the part that all ranks have.
        wanted: by rank, common ports that it wants, by common number.
        own: what is its own.
        returned: tensors that the step returns here, each once.
        rank: in the pipeline.
        recomputes: backward segments run again what they need of the forward.
    """

    def __init__(
        self,
        reader: Reader,
        nodes: Sequence[Node],
        common: Common,
        wanted: Sequence[Sequence[Port]],
        own: Own,
        returned: Sequence[Port],
        rank: int,
        recomputes: bool,
    ) -> None:
        self._reader = reader
        self._nodes = nodes
        self._common = common
        self._own = own
        self._returned = returned
        self._rank = rank
        self._to_common = common.to_common()
        self.plan = cut(self._common_nodes(), len(wanted), wanted, recomputes)
        self._require_movable()
        self._parts = {
            key: self._part(segment)
            for key, segment in self.plan.segments.items()
            if key.rank == rank
        }
        self._place_of: dict[Port, SegmentKey] = {
            self._local(port): key for (port, at), key in self.plan.segment_of.items() if at == rank
        }
        self._join_own()
        self._place_returned()

    def _require_movable(self) -> None:
        """Lists of tensors, tables and the like stay where they are."""
        for edge in self.plan.edges:
            port = self._local(edge.port)
            tensor = self._reader.tensor(port)
            if tensor.dtype in (tf.resource, tf.variant):
                raise ValueError(
                    f"{self._name_of([port.node])} makes a {tensor.dtype.name} ({tensor.op.name})"
                    f" in partition {edge.source}, which partition {edge.destination} uses;"
                    " expected it to stay in one, as only tensors of numbers, bools and strings go"
                    " to another rank. Place what makes it and what uses it as a whole: in one"
                    f" layer, or in one `with smp.partition({edge.source}):`."
                )

    def _common_nodes(self) -> list[Node]:
        return [
            dataclasses.replace(
                self._nodes[number],
                inputs=tuple(
                    Port(self._to_common[port.node], port.output)
                    for port in self._nodes[number].inputs
                ),
            )
            for number in self._common.numbers
        ]

    def _local(self, port: Port) -> Port:
        return Port(self._common.numbers[port.node], port.output)

    def _part(self, segment: Segment) -> _Part:
        return _Part(
            segment.key,
            [self._common.numbers[each] for each in segment.nodes],
            [self._local(port) for port in segment.inputs],
            [self._local(port) for port in segment.outputs],
            None if segment.again is None else self._again(segment.again),
        )

    def _again(self, again: Again) -> Again:
        return Again(
            [self._common.numbers[each] for each in again.nodes],
            [self._local(port) for port in again.inputs],
            [self._local(port) for port in again.outputs],
        )

    # ---- what is this rank's own -------------------------------------------------------------

    def _join_own(self) -> None:
        """Each operation joins the last of the segments that give what it needs."""
        key_of = self._keys_of_own()
        for number in self._own.numbers:
            key = key_of[number]
            self._parts[key].numbers.append(number)
            for port in self._nodes[number].inputs:
                self._bring(port, key)
            for output in range(len(self._reader.operations[number].outputs)):
                self._place_of[Port(number, output)] = key

    def _keys_of_own(self) -> dict[int, SegmentKey]:
        """By operation, its segment.

        All that touches a state which is changed here is in one: a metric reads its total, adds to
        it and assigns it, and no other microbatch may come between.
        """
        first = min(self._parts)
        changed = {state for number in self._own.numbers for state in self._nodes[number].changes}
        after = self._last_changes()
        keys: dict[int, SegmentKey] = {}
        is_settled = False
        while not is_settled:
            is_settled = True
            last_effect = first
            for number in self._own.numbers:
                node = self._nodes[number]
                states = (node.reads | node.changes) - {EFFECTS}
                needed = [keys.get(port.node) or self._key_of(port) for port in node.inputs]
                needed += [after[state] for state in states if state in after]
                key = max((each for each in needed if each is not None), default=first)
                if EFFECTS in node.changes:
                    key = last_effect = max(key, last_effect)
                keys[number] = key
                for state in states & changed:
                    if after.get(state) != key:
                        after[state] = key
                        is_settled = False
        return keys

    def _last_changes(self) -> dict[Hashable, SegmentKey]:
        """By state, the last segment in which the common part changes it here."""
        return {
            state: key
            for key in sorted(self._parts)
            for number in self._parts[key].numbers
            for state in self._nodes[number].changes - {EFFECTS}
        }

    def _key_of(self, port: Port) -> SegmentKey | None:
        """After which segment a tensor is here; None: anywhere, as it is cheap."""
        return None if self._is_cloned(port) else self._place_of[port]

    def _is_cloned(self, port: Port) -> bool:
        node = self._nodes[port.node]
        return node.role.is_cloned and node.home in (EVERYWHERE, self._rank)

    def _bring(self, port: Port, key: SegmentKey) -> None:
        """Lets a segment have a tensor."""
        giver = self._key_of(port)
        if giver is None or giver == key:
            return
        if port not in self._parts[key].inputs:
            self._parts[key].inputs.append(port)
        if port not in self._parts[giver].outputs:
            self._parts[giver].outputs.append(port)

    def _place_returned(self) -> None:
        for port in self._returned:
            key = self._key_of(port) or min(self._parts)
            if port not in self._parts[key].outputs:
                self._parts[key].outputs.append(port)
            self._place_of[port] = key

    # ---- the program -------------------------------------------------------------------------

    def segments(self) -> dict[Hashable, SegmentCall]:
        """Of this rank, by their keys as text."""
        functions = SegmentFunctions(self._reader, self._nodes)
        rows = self._layer_rows
        edges = self._edges()
        slots: dict[Port, int] = {}
        received = {
            self._local(edge.port): Received(number, edge.source)
            for number, edge in edges.items()
            if edge.destination == self._rank
        }
        room = ordering.awaits_room(self.graph)
        calls: dict[Hashable, SegmentCall] = {}
        for key in sorted(self._parts):
            part = self._parts[key]
            call, arguments = self._call(functions, part)
            inputs: list[Source] = [
                received[port] if port in received else Kept(slots[port]) for port in part.taken()
            ]
            inputs += [Argument(self._argument_index(port)) for port in arguments]
            needed_later = {
                port for other in self._parts.values() if other.key > key for port in other.taken()
            }
            keeps = []
            for output, port in enumerate(part.outputs):
                if port in needed_later and port not in received and port not in slots:
                    slots[port] = len(slots)
                    keeps.append((output, slots[port]))
            calls[str(key)] = SegmentCall(
                name=self._name_of(part.numbers),
                phase=key.phase.name.lower(),
                partition=self._rank,
                call=call,
                inputs=tuple(inputs),
                sends=self._sends(part, edges),
                keeps=tuple(keeps),
                results=tuple(
                    (part.outputs.index(port), result)
                    for result, port in enumerate(self._returned)
                    if self._place_of[port] == key
                ),
                awaits_room=room.get(str(key), ()),
                shares=rows.shares(part.all_numbers()),
                sizes=tuple(size_bytes(self._reader.tensor(port)) for port in part.outputs),
            )
        return calls

    def _call(self, functions: SegmentFunctions, part: _Part) -> tuple[Any, list[Port]]:
        """Of a segment; it takes what the segment gets, and then arguments of the step, these."""
        call, arguments = functions.make(_name(part.key), part.numbers, part.inputs, part.outputs)
        if part.again is None:
            return call, arguments
        forwards = [
            Forward(_name(key), each.numbers, each.outputs)
            for key, each in sorted(self._parts.items())
            if key.phase is Phase.FORWARD
        ]
        return recomputing(
            functions,
            self._nodes,
            forwards,
            set(part.again.nodes),
            part.taken(),
            (call, part.inputs, arguments),
        )

    def _edges(self) -> dict[int, Any]:
        return dict(enumerate(self.plan.edges))

    def _sends(self, part: _Part, edges: Mapping[int, Any]) -> tuple[Send, ...]:
        made = set(part.numbers)
        return tuple(
            Send(part.outputs.index(self._local(edge.port)), number, (edge.destination,))
            for number, edge in edges.items()
            if edge.source == self._rank and self._local(edge.port).node in made
        )

    def _argument_index(self, port: Port) -> int:
        name = self._nodes[port.node].name
        return [each.op.name for each in self._reader.trace.arguments].index(name)

    def _name_of(self, numbers: Sequence[int]) -> str:
        """Of the layers of operations, for messages."""
        labels = self._reader.trace.labels
        collector = self._reader.trace.collector
        assert collector is not None
        originals = [self._reader.originals[number] for number in numbers]
        found = [
            labels[number if original is None else original]
            for number, original in zip(numbers, originals, strict=True)
        ]
        of_model = [label for label in found if label is not None]
        of_layers = [label for label in of_model if label.layer is not None]
        names = [collector.name_of(label) for label in of_layers or of_model]
        names = list(dict.fromkeys(names))
        if not names:
            return "what is outside of the model"
        return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"

    def touched(self) -> tuple[list[State], list[State]]:
        """The states that segments of this rank use; and of these, those that they change."""
        numbers = [number for part in self._parts.values() for number in part.all_numbers()]
        cloned = [
            each for each in ancestors(self._nodes, numbers) if self._nodes[each].role.is_cloned
        ]
        changed = {state for number in numbers for state in self._nodes[number].changes}
        used = {state for number in (*numbers, *cloned) for state in self._nodes[number].reads}
        states = {
            key: State(self._reader.externals[number])
            for number, key in self._reader.handles.items()
            if key in used | changed
        }
        return (
            list(states.values()),
            [each for key, each in states.items() if key in changed and each.is_variable()],
        )

    def order(self, schedule: Schedule, ranks: int) -> list[tuple[str, int]]:
        """This rank's turns."""
        found = ordering.order(schedule, self.graph, ranks)
        return [(turn.segment, turn.microbatch) for turn in found.of_rank(self._rank)]

    def tells_room(self) -> tuple[int, ...]:
        """The ranks that wait for word that a microbatch has ended here."""
        room = ordering.awaits_room(self.graph)
        waiting = {each.rank for each in self.graph if self._rank in room.get(each.key, ())}
        return tuple(sorted(waiting))

    @functools.cached_property
    def _layer_rows(self) -> LayerRows:
        return LayerRows(self._reader, self._nodes, self._costs)

    @functools.cached_property
    def _costs(self) -> Costs:
        return Costs(self._reader)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The layers, for reports."""
        return self._layer_rows.rows

    @functools.cached_property
    def graph(self) -> list[ordering.Segment]:
        """The segments of all ranks."""
        return [
            ordering.Segment(
                key=str(key),
                rank=key.rank,
                phase=key.phase,
                inputs=tuple(str(each) for each in sorted(segment.waits_for)),
                follows=tuple(str(each) for each in sorted(segment.follows)),
                seconds=self._seconds(segment),
            )
            for key, segment in self.plan.segments.items()
        ]

    def _seconds(self, segment: Segment) -> float:
        """A guess that is the same on all ranks: to the last bit, whatever order nodes have."""
        numbers = [*(segment.again.nodes if segment.again else ()), *segment.nodes]
        common = self._common.numbers
        guesses = [self._costs.seconds_of(common[number]) for number in numbers]
        return _CALL_S + math.fsum(guesses)


def _name(key: SegmentKey) -> str:
    """Of a segment's function, in messages of TensorFlow."""
    return f"smp_{key.phase.name.lower()}_{key.level}"


def build(
    reader: Reader,
    nodes: Sequence[Node],
    common: Common,
    wanted: Sequence[Sequence[Port]],
    own: Own,
    returned: Sequence[Port],
    rank: int,
    config: Config,
    number: int,
    name: str,
    recomputes: bool = False,
) -> tuple[Program, list[State]]:
    """The program of one rank, and the states that it uses.

    Args:
        reader, nodes: of its graph; nodes are placed.
        common: the part that all ranks have.
        wanted: by rank of the pipeline, common tensors that it wants, by common number.
        own: what is this rank's own.
        returned: tensors that the step returns here, each once.
        rank: in the pipeline.
        number: of the program, the same on all ranks.
        name: of the step function.
        recomputes: backward segments run again what they need of the forward.
    """
    builder = _Builder(reader, nodes, common, wanted, own, returned, rank, recomputes)
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in reader.trace.arguments]
    tensors = [reader.tensor(port) for port in returned]
    used, changed = builder.touched()
    schedule = schedule_named(config.pipeline, config.microbatches, config.active_microbatches)
    program = Program(
        number=number,
        name=name,
        microbatches=config.microbatches,
        segments=builder.segments(),
        turns=builder.order(schedule, len(wanted)),
        arguments=specs,
        results=[tf.TensorSpec(each.shape, each.dtype) for each in tensors],
        changed=changed,
        bound=schedule.bound,
        tells_room=builder.tells_room(),
        graph=builder.graph,
        rows=builder.rows,
    )
    return program, used
