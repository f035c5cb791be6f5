# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a traced graph: TensorFlow's operations in, plain nodes out.

Source: TensorFlow modelparallel specification, sections 3.2 to 3.5 and 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry  # it is not public

from smdistributed.modelparallel.tensorflow.graph.nodes import (
    EFFECTS,
    EVERYWHERE,
    Node,
    Port,
    Role,
)
from smdistributed.modelparallel.tensorflow.graph.tracing import Trace

__all__ = ["Reader", "Touch", "homes_of"]

_READS = frozenset(
    ("ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp")
)
_SHAPES = frozenset(("Shape", "Size", "Rank"))
# They keep a state that is their own, and change none that others see.
_RANDOM = frozenset(
    (
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "UniformCandidateSampler",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "FractionalAvgPool",
        "FractionalMaxPool",
        "NonDeterministicInts",
        "RandomCrop",
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "ParameterizedTruncatedNormal",
        "TruncatedNormal",
        "RandomShuffle",
        "Multinomial",
        "RandomGamma",
        "RandomGammaGrad",
        "RandomPoisson",
        "RandomPoissonV2",
        "StatelessRandomGetKeyCounter",
    )
)
# Where each rank ran its own, it would have a result of its own.
_DRAWING = _RANDOM | frozenset(
    (
        "PyFunc",
        "PyFuncStateless",
        "EagerPyFunc",
        "RngReadAndSkip",
        "RngSkip",
        "StatefulRandomBinomial",
        "Timestamp",
    )
)
_DRAWER = 0
_SMALL = 64  # elements of what is made again rather than kept
_CHEAP_OF_VARIABLES = frozenset(("Cast", "Identity", "StopGradient"))


@dataclasses.dataclass(frozen=True)
class Touch:
    """What one operation does to states, by keys of its resources.

    Attributes:
        reads, changes: those.
    """

    reads: frozenset[Hashable]
    changes: frozenset[Hashable]


class Reader:
    """The operations of a trace, as far as no partition has to be known.

    Attributes:
        operations: in the order in which they were made.
        inputs: by operation, its inputs as ports.
        number_of: by operation's name.
        touches: by operation.
        roles: by operation; reads of variables are `FREE` if nothing changes these.
        originals: by operation, of which its gradients are; or None.
        is_gradient: by operation, whether it was made by taking gradients.
        has_plain_gradients: whether some were taken by `tf.gradients` itself.
        can_run_again: by operation; see `Node`.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        graph = trace.graph
        self.operations: list[Any] = list(graph.get_operations())
        self.number_of = {op.name: number for number, op in enumerate(self.operations)}
        self.inputs = [tuple(self.port(tensor) for tensor in op.inputs) for op in self.operations]
        self.handles: dict[int, Hashable] = {}  # placeholder's number: key of the state
        self.externals: dict[int, Any] = {}  # placeholder's number: what it stands for
        for external, placeholder in graph.captures:
            number = self.number_of[placeholder.op.name]
            self.externals[number] = external
            if placeholder.dtype == tf.resource:
                self.handles[number] = number
        arguments = {self.number_of[each.op.name] for each in trace.arguments}
        self.touches = [self._touch(number) for number in range(len(self.operations))]
        self.changed = {state for touch in self.touches for state in touch.changes}
        self.roles: list[Role] = []
        for number in range(len(self.operations)):
            self.roles.append(self._role(number, arguments))
        self.originals = [
            None if op._original_op is None else self.number_of.get(op._original_op.name)
            for op in self.operations
        ]
        # By a call of `tf.gradients` that nobody has told of.
        plain = [
            original is not None and not (told or own)
            for told, original, own in zip(
                trace.gradients, self.originals, trace.own_gradients, strict=True
            )
        ]
        self.has_plain_gradients = any(plain)
        self.is_gradient = [
            told or not_told for told, not_told in zip(trace.gradients, plain, strict=True)
        ]

        reading_only: set[str] | None = None
        self.can_run_again: list[bool] = []
        for number, op in enumerate(self.operations):
            if op.op_def.is_stateful and reading_only is None and _functions_of(op.node_def):
                reading_only = _reading_functions(graph.as_graph_def().library.function)
            self.can_run_again.append(self._can_run_again(number, reading_only or set()))

    def port(self, tensor: Any) -> Port:
        """A tensor of the graph."""
        return Port(self.number_of[tensor.op.name], tensor.value_index)

    def tensor(self, port: Port) -> Any:
        """The inverse of `port`."""
        return self.operations[port.node].outputs[port.output]

    def nodes(self, homes: Sequence[int], returned: Iterable[Port]) -> list[Node]:
        """The plain nodes.

        Args:
            homes: by operation.
            returned: tensors that the step returns, on whatever rank.
        """
        nodes = []
        for number, op in enumerate(self.operations):
            touch = self.touches[number]
            nodes.append(
                Node(
                    name=op.name,
                    inputs=self.inputs[number],
                    home=homes[number],
                    role=self.roles[number],
                    is_gradient=self.is_gradient[number],
                    takes_shape=op.type in _SHAPES,
                    reads=touch.reads,
                    changes=touch.changes,
                    must_run=self._must_run(number),
                    can_run_again=self.can_run_again[number],
                )
            )
        return _with_reads_at_home(nodes, returned)

    def drawing(self) -> list[int]:
        """Operations whose results differ each time and are tensors: random ones, Python's."""
        stateful = [
            number
            for number, op in enumerate(self.operations)
            # Pools that draw their boxes do not say so.
            if (op.op_def.is_stateful or op.type in _RANDOM)
            and op.outputs
            and not any(each.dtype in (tf.resource, tf.variant) for each in op.outputs)
        ]
        with_functions: set[str] = set()
        if any(_functions_of(self.operations[number].node_def) for number in stateful):
            library = self.trace.graph.as_graph_def().library
            with_functions = _drawing_functions(library.function)
        return [
            number
            for number in stateful
            if self.operations[number].type in _DRAWING
            or with_functions & _functions_of(self.operations[number].node_def)
        ]

    # ---- states ------------------------------------------------------------------------------

    def _touch(self, number: int) -> Touch:
        op = self.operations[number]
        states = {
            place: self.handles[port.node]
            for place, port in enumerate(self.inputs[number])
            if port.node in self.handles
        }
        read_only = set(states) if op.type in _READS else _read_only_inputs(op) & set(states)
        reads = frozenset(states[place] for place in read_only)
        changes = frozenset(states[place] for place in states.keys() - read_only)
        if not states and _has_effects(op):
            changes = frozenset((EFFECTS,))
        return Touch(reads, changes)

    def _must_run(self, number: int) -> bool:
        op = self.operations[number]
        if self.touches[number].changes:
            return True
        return bool(_has_effects(op)) and not self.touches[number].reads

    def _can_run_again(self, number: int, reading_only: set[str]) -> bool:
        """Not what is drawn, what changes something, or depends on what changes: it is kept.

        Nor what is small: to keep it costs less than to make all that it is made of.

        Args:
            reading_only: names of functions that do nothing else to states.
        """
        op, touch = self.operations[number], self.touches[number]
        if touch.changes or touch.reads & self.changed or op.type in _SHAPES | _RANDOM:
            return False
        if all(_is_small(each) for each in op.outputs):
            return False
        if not op.op_def.is_stateful or op.type in _READS:
            return True
        called = _functions_of(op.node_def)
        return bool(called) and called <= reading_only

    # ---- roles -------------------------------------------------------------------------------

    def _role(self, number: int, arguments: set[int]) -> Role:
        op = self.operations[number]
        if number in arguments:
            return Role.ARGUMENT
        if number in self.handles:
            return Role.HANDLE
        if number in self.externals or op.type == "Const":
            return Role.FREE
        if op.type == "ReadVariableOp":
            is_steady = not (self.touches[number].reads & self.changed)
            return Role.FREE if is_steady else Role.PLAIN
        if self.inputs[number] and not op.op_def.is_stateful and self._is_cheap(number):
            return Role.FREE
        return Role.PLAIN

    def _is_cheap(self, number: int) -> bool:
        op = self.operations[number]
        needed = [port.node for port in self.inputs[number]]
        if any(each >= number for each in needed):  # of a loop, changed later
            return False
        roles = {self.roles[each] for each in needed}
        if op.type in _SHAPES and roles == {Role.ARGUMENT}:
            return True
        if roles != {Role.FREE}:
            return False
        if op.type in _CHEAP_OF_VARIABLES:
            return True
        return all(_is_small(output) for output in op.outputs)


def _is_small(tensor: Any) -> bool:
    """Whether it is known to have few elements."""
    count = None if tensor.dtype == tf.variant else tensor.shape.num_elements()
    return count is not None and count <= _SMALL


def _functions_of(node_def: Any) -> set[str]:
    """The functions that an operation calls."""
    names = set()
    for value in node_def.attr.values():
        names |= {each.name for each in (value.func, *value.list.func) if each.name}
    return names


def _drawing_functions(functions: Iterable[Any]) -> set[str]:
    """Those in which, or in what they call, something is drawn."""
    found: set[str] = set()
    calls: dict[str, set[str]] = {}
    for each in functions:
        name = each.signature.name
        calls[name] = set().union(*(_functions_of(node) for node in each.node_def))
        if any(node.op in _DRAWING for node in each.node_def):
            found.add(name)
    is_complete = False
    while not is_complete:
        more = {name for name, called in calls.items() if called & found} - found
        found |= more
        is_complete = not more
    return found


def _reading_functions(functions: Iterable[Any]) -> set[str]:
    """Those that, with all that they call, read states and do nothing else to them."""
    found: set[str] = set()
    calls: dict[str, set[str]] = {}
    for each in functions:
        name = each.signature.name
        called = [_functions_of(node) for node in each.node_def]
        calls[name] = set().union(*called)
        if all(
            node.op in _READS or callees or not _is_stateful(node.op)
            for node, callees in zip(each.node_def, called, strict=True)
        ):
            found.add(name)
    is_complete = False
    while not is_complete:
        left = {name for name in found if calls[name] <= found}
        is_complete = left == found
        found = left
    return found


def _is_stateful(kind: str) -> bool:
    """Whether operations of a kind are."""
    definition = op_def_registry.get(kind)
    return definition is None or bool(definition.is_stateful)


def _read_only_inputs(op: Any) -> set[int]:
    try:
        return set(op.get_attr("_read_only_resource_inputs"))
    except ValueError:
        return set()


def _has_effects(op: Any) -> bool:
    is_quiet = op.type in _RANDOM or op.type in _READS or op.type in ("Placeholder", "Const")
    return bool(op.op_def.is_stateful) and not is_quiet


def _with_reads_at_home(nodes: list[Node], returned: Iterable[Port]) -> list[Node]:
    """What is cheap where a variable is, and is needed elsewhere, is made there once, and sent."""
    for port in returned:
        node = nodes[port.node]
        if node.role is Role.FREE and node.home != EVERYWHERE:
            nodes[port.node] = dataclasses.replace(node, role=Role.PLAIN)
    for number in reversed(range(len(nodes))):
        node = nodes[number]
        for port in node.inputs:
            needed = nodes[port.node]
            is_made_elsewhere = needed.role is Role.FREE and needed.home != EVERYWHERE
            if is_made_elsewhere and node.home != needed.home:
                nodes[port.node] = dataclasses.replace(needed, role=Role.PLAIN)
    return nodes


def homes_of(
    reader: Reader,
    common: Iterable[int],
    partition_of: Mapping[int, int],
    owner_of: Mapping[Hashable, int],
) -> list[int]:
    """By operation, where it runs.

    Args:
        reader: the operations.
        common: those that all ranks have, ascending.
        partition_of: by operation of the model's forward, its partition.
        owner_of: by state, the partition that has it; others are everywhere.
    """
    homes = [partition_of.get(number, EVERYWHERE) for number in range(len(reader.operations))]
    for number, touch in enumerate(reader.touches):
        owners = {owner_of[state] for state in touch.reads | touch.changes if state in owner_of}
        if homes[number] == EVERYWHERE and owners:
            homes[number] = min(owners)
    for number in reader.drawing():
        if homes[number] == EVERYWHERE:
            homes[number] = _DRAWER
    _place_free(reader, homes)
    _place_sums_of_variables(reader, homes, common)
    gradients = [number for number, each in enumerate(reader.is_gradient) if each]
    for number in gradients:
        original = reader.originals[number]
        if original is not None:
            homes[number] = homes[original]
    _place_sums(reader, homes, gradients)
    _place_free(reader, homes)
    return homes


def _place_sums_of_variables(reader: Reader, homes: list[int], common: Iterable[int]) -> None:
    """What is made of variables of one partition alone, as by regularizers, runs there."""
    placed: set[int] = set()
    for number in common:
        is_free_to_go = homes[number] == EVERYWHERE and reader.roles[number] is Role.PLAIN
        needed = [port.node for port in reader.inputs[number]]
        is_of_variables = all(reader.roles[each] is Role.FREE or each in placed for each in needed)
        places = {homes[each] for each in needed} - {EVERYWHERE}
        if (
            is_free_to_go
            and is_of_variables
            and len(places) == 1
            and not reader.is_gradient[number]
        ):
            homes[number] = places.pop()
            placed.add(number)


def _place_sums(reader: Reader, homes: list[int], gradients: Sequence[int]) -> None:
    """Sums of gradients run where all that they sum is made, so that one tensor travels.

    Else where they are used; and if nobody uses them, where what they sum is made.
    """
    for number in gradients:
        if reader.operations[number].type == "AddN" and homes[number] == EVERYWHERE:
            makers = {homes[port.node] for port in reader.inputs[number]}
            if len(makers) == 1:
                homes[number] = makers.pop()
    users: dict[int, set[int]] = {}
    for number in gradients:
        for port in reader.inputs[number]:
            users.setdefault(port.node, set()).add(number)
    for number in reversed(gradients):
        if homes[number] != EVERYWHERE or reader.originals[number] is not None:
            continue
        places = {homes[user] for user in users.get(number, ())}
        if not places:
            places = {homes[port.node] for port in reader.inputs[number]} - {EVERYWHERE}
        if len(places) == 1:
            homes[number] = places.pop()


def _place_free(reader: Reader, homes: list[int]) -> None:
    """What is made again wherever it is needed has a home only if it comes from a variable."""
    for number, role in enumerate(reader.roles):
        if not role.is_cloned:
            continue
        needed = {homes[port.node] for port in reader.inputs[number]}
        reads = reader.touches[number].reads
        if not reads:
            homes[number] = max(needed, default=EVERYWHERE) if role is Role.FREE else EVERYWHERE
