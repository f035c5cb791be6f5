# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which partition a layer, and a variable, goes to: decided from the first traced step, and kept.

The decision is about layers (the outermost ones that are no containers of layers) and about
variables that operations of `call` itself use. Other operations of `call` go with what they need.
So a decision made on one step holds for another, such as an evaluation, whose graph differs.

With `auto_partition` off, contexts (`smp.partition`) place operations; variables go where they are
used.

Source: TensorFlow modelparallel specification, sections 3.2 to 3.5, 4 and 5.6.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.partition.graph import Graph, Node, Tensor, Variable
from smdistributed.modelparallel.decide.partition.graph_assignment import (
    GraphAssignment,
    assign_by_hand,
    assign_graph,
)
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.tensorflow.graph.nodes import Role
from smdistributed.modelparallel.tensorflow.graph.reading import Reader

__all__ = ["Decision", "ModelVariable", "decide", "place"]


@dataclasses.dataclass(frozen=True)
class ModelVariable:
    """A variable that the model uses.

    Attributes:
        name: unique in the model.
        raw: the `tf.Variable`.
    """

    name: str
    raw: Any
    nbytes: int


@dataclasses.dataclass
class Decision:
    """Where layers and variables are.

    Attributes:
        partitions: how many there are.
        partition_of_layer: by `id` of the layer.
        owner_of: by `id` of the `tf.Variable`.
        assignment: why; of the graph on which it was decided.
        kept: the layers and variables, so that no other object has their `id`.
    """

    partitions: int
    partition_of_layer: dict[int, int]
    owner_of: dict[int, int]
    assignment: GraphAssignment
    kept: list[Any]


VariableOf = Callable[[Any], ModelVariable | None]
"""Of a handle that a graph has captured, the variable of the model; None: of something else."""


def decide(reader: Reader, config: Config, variable_of: VariableOf) -> Decision:
    """Decides about what one traced step uses.

    Raises:
        ConfigError: by hand: a layer, or what uses one variable, is in two partitions.
    """
    groups = _Groups(reader, variable_of)
    graph = Graph(
        list(groups.nodes(config.auto_partition)), list(groups.tensors()), groups.colocated()
    )
    if config.auto_partition:
        assignment = assign_graph(
            graph, config.partitions, config.memory_weight, contiguous=config.contiguous
        )
    else:
        assert config.default_partition is not None  # the configuration was checked
        assignment = assign_by_hand(
            graph,
            config.partitions,
            config.memory_weight,
            dict(groups.by_hand(config.default_partition)),
            config.default_partition,
        )
    labels = reader.trace.collector
    assert labels is not None
    partition_of_layer = {}
    owner_of = {}
    for number in groups.operations:
        partition = assignment.partition_of_node(groups.name_of(number))
        layer = groups.layer_of(number)
        if layer is not None:
            partition_of_layer[id(labels.layers[layer])] = partition
        for variable in groups.variables_of(number):
            owner_of[id(variable.raw)] = partition
    kept = [*labels.layers, *(each.raw for each in groups.all_variables())]
    return Decision(config.partitions, partition_of_layer, owner_of, assignment, kept)


def place(
    reader: Reader, config: Config, decision: Decision, variable_of: VariableOf
) -> dict[int, int]:
    """By operation of the model's forward, its partition.

    What was not decided on (a layer that only an evaluation calls) goes with what it needs; its
    variables are added to the decision.

    Raises:
        ConfigError: by hand: an operation is not where its variable is.
    """
    groups = _Groups(reader, variable_of)
    if not config.auto_partition:
        assert config.default_partition is not None
        partition_of = dict(groups.partitions_by_hand(config.default_partition))
        _own_or_check(groups, decision, partition_of)
        return partition_of
    placed = _Placing(groups, decision).placed()
    _own_or_check(groups, decision, placed)
    return placed


def _own_or_check(groups: _Groups, decision: Decision, partition_of: Mapping[int, int]) -> None:
    owners: dict[int, int] = {}  # the operation that says so, for messages
    for number in groups.operations:
        for variable in groups.variables_of(number):
            owner = decision.owner_of.setdefault(id(variable.raw), partition_of[number])
            decision.kept.append(variable.raw)
            owners.setdefault(id(variable.raw), number)
            if owner != partition_of[number]:
                name = groups.label_of(number)
                raise ConfigError(
                    f"{name} is in partition {partition_of[number]}, and uses the variable"
                    f" {variable.name}, which is in partition {owner}; expected one partition. Open"
                    f" `with smp.partition({owner})` around its call in every step function."
                )


class _Placing:
    """Places the operations of a trace as a decision says, which may have been made on another.

    Operations of one layer, or of one variable, stay together.
    """

    def __init__(self, groups: _Groups, decision: Decision) -> None:
        self._groups = groups
        self._decision = decision
        self._partition_of: dict[int, int] = {}
        self._together: dict[int, list[int]] = {}  # by operation, those that it cannot leave
        by_bond: dict[Hashable, list[int]] = {}
        for number in groups.operations:
            mine = self._together[number] = [number]
            for bond in self._bonds(number):
                theirs = self._together[by_bond.setdefault(bond, mine)[0]]
                if theirs is not mine:
                    theirs += mine
                    self._together.update(dict.fromkeys(mine, theirs))
                    mine = theirs

    def placed(self) -> dict[int, int]:
        """By operation, its partition."""
        groups = self._groups
        for number in groups.operations:
            self._place(number, self._decided(number))
        for number in groups.operations:
            if number not in self._partition_of:
                near = [self._partition_of.get(each) for each in groups.needed(number)]
                self._place(number, max((p for p in near if p is not None), default=None))
        for number in reversed(groups.operations):
            if number not in self._partition_of:
                near = [self._partition_of.get(each) for each in groups.users(number)]
                self._place(number, min((p for p in near if p is not None), default=0))
        return self._partition_of

    def _bonds(self, number: int) -> Iterator[Hashable]:
        layer = self._groups.layer_object(number)
        if layer is not None:
            yield id(layer)
        for variable in self._groups.variables_of(number):
            yield id(variable.raw)
        first = self._groups.list_of(number)
        if first is not None:
            yield "list", first

    def _decided(self, number: int) -> int | None:
        decision = self._decision
        layer = self._groups.layer_object(number)
        if layer is not None and id(layer) in decision.partition_of_layer:
            return decision.partition_of_layer[id(layer)]
        owners = [decision.owner_of.get(id(v.raw)) for v in self._groups.variables_of(number)]
        return next((each for each in owners if each is not None), None)

    def _place(self, number: int, partition: int | None) -> None:
        if partition is None:
            return
        for each in self._together[number]:
            if each in self._partition_of:
                continue
            self._partition_of[each] = partition
            layer = self._groups.layer_object(each)
            if layer is not None and id(layer) not in self._decision.partition_of_layer:
                self._decision.partition_of_layer[id(layer)] = partition
                self._decision.kept.append(layer)


class _Groups:
    """What a trace's operations of the model's forward belong to."""

    def __init__(self, reader: Reader, variable_of: VariableOf) -> None:
        self._reader = reader
        labels, collector = reader.trace.labels, reader.trace.collector
        assert collector is not None
        self._variable_of_state = {
            state: variable_of(reader.externals[number]) for number, state in reader.handles.items()
        }
        self.operations = [
            number
            for number, label in enumerate(labels)
            if label is not None
            and not reader.is_gradient[number]
            and not reader.roles[number].is_cloned
        ]
        self._own = set(self.operations)
        self._states = self._states_used()
        self._users: dict[int, list[int]] = {}
        for number in self.operations:
            for each in self.needed(number):
                self._users.setdefault(each, []).append(number)
        self._bound = self._bound_by_lists()
        self._names = collector.unique_names()
        self._group_of = self._grouped()

    def needed(self, number: int) -> Iterator[int]:
        """Operations of the model whose results an operation needs."""
        for port in self._reader.inputs[number]:
            if port.node in self._own:
                yield port.node

    def users(self, number: int) -> Sequence[int]:
        """Operations of the model that need its results."""
        return self._users.get(number, ())

    def layer_of(self, number: int) -> int | None:
        """The number of its layer."""
        label = self._reader.trace.labels[number]
        return None if label is None else label.layer

    def layer_object(self, number: int) -> Any:
        """Its layer; None: it is of `call` itself."""
        labels = self._reader.trace.collector
        assert labels is not None
        layer = self.layer_of(number)
        return None if layer is None else labels.layers[layer]

    def list_of(self, number: int) -> int | None:
        """Operations with the same one pass on a list of tensors, or another thing that stays."""
        return self._bound.get(number)

    def variables_of(self, number: int) -> list[ModelVariable]:
        """Those of the model that an operation reads or changes, itself or as a cheap clone."""
        found = (self._variable_of_state.get(state) for state in self._states.get(number, ()))
        return [variable for variable in found if variable is not None]

    def all_variables(self) -> Iterator[ModelVariable]:
        """Of the model."""
        return (each for each in self._variable_of_state.values() if each is not None)

    def name_of(self, number: int) -> str:
        """Unique in the graph."""
        return str(self._reader.operations[number].name)

    def label_of(self, number: int) -> str:
        """For messages: its layer, or itself."""
        layer = self.layer_of(number)
        return self.name_of(number) if layer is None else f"the layer {self._names[layer]}"

    def nodes(self, by_cost: bool) -> Iterator[Node]:
        """For the decision.

        Args:
            by_cost: operations of `call` itself go with what they need; else contexts place each.
        """
        for number in self.operations:
            layer = self.layer_of(number)
            of_layer = None if layer is None else self._names[layer]
            yield Node(
                name=self.name_of(number),
                layer=self._group_of.get(number) if by_cost else of_layer,
                variables=tuple(
                    Variable(each.name, each.nbytes) for each in self.variables_of(number)
                ),
                operations=1,
            )

    def tensors(self) -> Iterator[Tensor]:
        """For the decision: by output, who uses it."""
        consumers: dict[Any, list[str]] = {}
        for number in self.operations:
            for port in self._reader.inputs[number]:
                if port.node in self._own:
                    consumers.setdefault(port, []).append(self.name_of(number))
        for port, names in consumers.items():
            size = _size_bytes(self._reader.tensor(port))
            yield Tensor(self.name_of(port.node), tuple(names), size)

    def colocated(self) -> list[tuple[str, ...]]:
        """Names of operations that have to be on one rank."""
        sets: dict[int, list[str]] = {}
        for number, first in self._bound.items():
            sets.setdefault(first, []).append(self.name_of(number))
        return [tuple(each) for each in sets.values()]

    def by_hand(self, default: int) -> Iterator[tuple[str, int]]:
        """By name of operation, where the contexts put it."""
        for number, partition in self.partitions_by_hand(default):
            yield self.name_of(number), partition

    def partitions_by_hand(self, default: int) -> Iterator[tuple[int, int]]:
        """By number of operation."""
        for number in self.operations:
            label = self._reader.trace.labels[number]
            assert label is not None
            yield number, default if label.partition is None else label.partition

    def _states_used(self) -> dict[int, list[Hashable]]:
        states: dict[int, set[Hashable]] = {}
        for number, touch in enumerate(self._reader.touches):
            found = set(touch.reads | touch.changes)
            for port in self._reader.inputs[number]:
                if self._reader.roles[port.node] is Role.FREE:
                    found |= states.get(port.node, set())
            states[number] = found
        return {number: sorted(found, key=repr) for number, found in states.items() if found}

    def _bound_by_lists(self) -> dict[int, int]:
        """By operation that makes or takes a list, the first one that is bound to it."""
        together: dict[int, list[int]] = {}
        for number in self.operations:
            for port in self._reader.inputs[number]:
                is_of_model = port.node in self._own
                if is_of_model and self._reader.tensor(port).dtype in (tf.resource, tf.variant):
                    one = together.setdefault(port.node, [port.node])
                    other = together.setdefault(number, [number])
                    if one is not other:
                        one += other
                        together.update(dict.fromkeys(other, one))
        return {number: min(each) for number, each in sorted(together.items())}

    def _grouped(self) -> dict[int, str]:
        """By operation: its layer, or what else it goes with."""
        group_of: dict[int, str] = {}
        rank_of: dict[str, int] = {}
        pending = []
        for number in self.operations:
            layer = self.layer_of(number)
            variables = self.variables_of(number)
            if layer is not None:
                group = self._names[layer]
            elif variables:
                group = f"variable {variables[0].name}"
            elif number in self._bound:
                group = f"list {self.name_of(self._bound[number])}"
            else:
                near = [group_of[each] for each in self.needed(number) if each in group_of]
                if not near:
                    pending.append(number)
                    continue
                group = max(near, key=rank_of.__getitem__)
            group_of[number] = group
            rank_of.setdefault(group, len(rank_of))
        for number in reversed(pending):
            near = [group_of[each] for each in self.users(number) if each in group_of]
            if near:
                group_of[number] = min(near, key=rank_of.__getitem__)
        return group_of


def _size_bytes(tensor: Any) -> int:
    if tensor.shape.rank is None:
        return int(tensor.dtype.size or 1)
    elements = math.prod(1 if each is None else each for each in tensor.shape.as_list())
    return int(elements * (tensor.dtype.size or 1))
