# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes callable functions of segments: parts of a traced graph, with the order of states put back.

A part is taken out as a `GraphDef`: its nodes, and clones of what is cheap; what comes from other
segments becomes an argument. Control edges say in which order its operations touch a state, and
that whatever has to run does run.

Source: TensorFlow modelparallel specification, section 3.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.nodes import Node, Port, Role, chain_of
from smdistributed.modelparallel.tensorflow.graph.reading import Reader

__all__ = ["Call", "SegmentFunctions"]

Call = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


class SegmentFunctions:
    """Makes the functions of one traced step.

    Args:
        reader: its operations.
        nodes: the same, placed.
    """

    def __init__(self, reader: Reader, nodes: Sequence[Node]) -> None:
        self._reader = reader
        self._nodes = nodes
        definition = reader.trace.graph.as_graph_def()
        self._definitions = {node.name: node for node in definition.node}
        self._library = definition.library
        self._versions = definition.versions

    def make(
        self, name: str, numbers: Sequence[int], inputs: Sequence[Port], outputs: Sequence[Port]
    ) -> tuple[Call, list[Port]]:
        """A function of some operations.

        Args:
            name: for messages of TensorFlow.
            numbers: operations, in an order in which they can run.
            inputs: tensors that come from elsewhere.
            outputs: what it returns.

        Returns:
            The function: it takes the tensors of `inputs`, and then those of the arguments of the
            step that are returned beside it.
        """
        clones = self._clones(numbers, outputs, set(inputs))
        roles = self._nodes
        arguments = [Port(each) for each in clones if roles[each].role is Role.ARGUMENT]
        externals = [each for each in clones if each in self._reader.externals]
        own = [
            each
            for each in sorted({*clones, *numbers})
            if each not in self._reader.externals and roles[each].role is not Role.ARGUMENT
        ]
        part = self._definition(own, {port.node for port in (*inputs, *arguments)}, numbers)
        used = {self._fed(each) for node in part.node for each in node.input}
        must_run = [self._nodes[each].name for each in numbers if self._nodes[each].must_run]
        specs = [self._spec(port) for port in (*inputs, *arguments)]

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            given = {
                self._name(port): tensor
                for port, tensor in zip((*inputs, *arguments), tensors, strict=True)
            }
            for number in externals:
                given[self._name(Port(number))] = graph.capture(self._reader.externals[number])
            made = iter(
                tf.graph_util.import_graph_def(
                    part,
                    # What is only passed on, or only returned, is not of the part.
                    input_map={key: value for key, value in given.items() if key in used},
                    return_elements=[
                        *(self._name(port) for port in outputs if self._name(port) not in given),
                        *must_run,
                    ],
                    name="",
                )
            )
            found = [
                given[self._name(port)] if self._name(port) in given else next(made)
                for port in outputs
            ]
            with tf.control_dependencies(list(made)):
                done = tf.constant(0)
            return [*found, tf.identity(done)]

        with tf.init_scope():
            function = tf.compat.v1.wrap_function(body, specs, name)
        captured = function.captured_inputs
        count = len(outputs)
        # Less work in Python than a call of the function, and no tape is asked.
        run = function.inference_fn.call_flat

        def call(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            results: list[tf.Tensor] = run(*tensors, *captured)
            return results[:count]

        call.variables = [  # type: ignore[attr-defined] # they live as long as the function
            self._reader.externals[number] for number in externals
        ]
        return call, arguments

    def _clones(
        self, numbers: Sequence[int], outputs: Sequence[Port], given: set[Port]
    ) -> list[int]:
        """The cheap operations, arguments and handles that a part needs."""
        found: set[int] = set()
        stack = [port for number in numbers for port in self._nodes[number].inputs]
        stack += outputs
        while stack:
            port = stack.pop()
            node = self._nodes[port.node]
            if port in given or not node.role.is_cloned or port.node in found:
                continue
            found.add(port.node)
            stack.extend(node.inputs)
        return sorted(found)

    def _definition(self, own: Sequence[int], fed: set[int], ordered: Sequence[int]) -> Any:
        inside = {self._nodes[each].name for each in own}
        before = self._chained(ordered)
        part = tf.compat.v1.GraphDef()
        part.versions.CopyFrom(self._versions)
        part.library.CopyFrom(self._library)
        for number in own:
            node = part.node.add()
            node.CopyFrom(self._definitions[self._nodes[number].name])
            data = [each for each in node.input if not each.startswith("^")]
            control = {each for each in node.input if each[:1] == "^" and each[1:] in inside}
            control |= {f"^{self._nodes[each].name}" for each in before.get(number, ())}
            del node.input[:]
            node.input.extend(
                self._fed(each) if _producer(each) not in inside else each for each in data
            )
            node.input.extend(sorted(control))
            node.device = ""
            node.attr.pop("_class", None)
            if node.op == "AddN" and len(data) > 2:
                _sum_in_order(part, node, len(data))
        return part

    def _chained(self, ordered: Sequence[int]) -> dict[int, list[int]]:
        """By operation, those that touch its states before it; see `cutting`."""
        before: dict[int, list[int]] = defaultdict(list)
        touching: dict[Hashable, list[int]] = defaultdict(list)
        for number in sorted(ordered):
            for state in self._nodes[number].reads | self._nodes[number].changes:
                touching[state].append(number)
        for state, numbers in touching.items():
            touched = ((number, state in self._nodes[number].changes) for number in numbers)
            for earlier, later in chain_of(touched):
                before[later].append(earlier)
        return before

    def _name(self, port: Port) -> str:
        return f"{self._nodes[port.node].name}:{port.output}"

    def _fed(self, name: str) -> str:
        """The name under which a part knows a tensor that it does not make."""
        return name if ":" in name else f"{name}:0"

    def _spec(self, port: Port) -> tf.TensorSpec:
        tensor = self._reader.tensor(port)
        return tf.TensorSpec(tensor.shape, tensor.dtype)


def _sum_in_order(part: Any, node: Any, count: int) -> None:
    """Makes a sum of many a chain of sums of two, which have the same bits in all parts.

    `AddN` begins with the input whose memory it can take for the result, and so rounds otherwise
    where an input comes from another segment, or has another consumer that has not ended yet.
    """
    tensors, control = list(node.input[:count]), list(node.input[count:])
    total = tensors[0]
    for place in range(1, count - 1):
        step = part.node.add()
        step.CopyFrom(node)
        step.name = f"{node.name}/sum_of_{place + 1}"
        step.attr["N"].i = 2
        step.input[:] = [total, tensors[place], *control]
        total = f"{step.name}:0"
    node.attr["N"].i = 2
    node.input[:] = [total, tensors[-1], *control]


def _producer(name: str) -> str:
    return name.split(":")[0]
