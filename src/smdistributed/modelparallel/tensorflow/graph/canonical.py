# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a pipeline must have traced alike, in words that do not differ by accident.

A rank's graph has a *common* part: the model, the gradients, what these are taken of, and all that
these need. The rest is its own: what it makes of results, such as a sum over the gradients of its
own variables. Of the common part each operation is a line: its type, attributes, inputs, and
shapes. Names, devices and seeds are left out: they may differ where nothing does that matters.

Source: TensorFlow modelparallel specification, section 8.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smdistributed.modelparallel.tensorflow.graph.nodes import Node, ancestors
from smdistributed.modelparallel.tensorflow.graph.reading import Reader

__all__ = ["Common", "common_part", "first_difference", "part_of"]

# What does not matter: on whom it is placed, and what each process draws for itself.
_LEFT_OUT = frozenset(("seed", "seed2", "container", "shared_name"))
_NUMBER_AT_END = re.compile(r"(_\d+)+$")


@dataclasses.dataclass(frozen=True)
class Common:
    """The common part of a rank's graph.

    Attributes:
        numbers: its operations, handles first, then ascending: common number to number in the
            graph.
        lines: one for each.
        digest: of the lines.
    """

    numbers: list[int]
    lines: list[str]
    digest: bytes

    def to_common(self) -> dict[int, int]:
        """The inverse of `numbers`."""
        return {number: place for place, number in enumerate(self.numbers)}


def common_part(
    reader: Reader,
    nodes: Sequence[Node],
    describe_handle: Callable[[Any], str],
    also: Iterable[int] = (),
) -> Common:
    """Finds it.

    Args:
        reader: the operations.
        nodes: the same, as nodes.
        describe_handle: what to say of a variable's handle.
        also: other operations that belong to it.
    """
    labels = reader.trace.labels
    roots = [
        number
        for number, node in enumerate(nodes)
        if (labels[number] is not None or node.is_gradient) and not node.role.is_cloned
    ]
    losses = (each.op for each in reader.trace.losses if each.graph is reader.trace.graph)
    roots += [reader.number_of[op.name] for op in losses]
    arguments = [reader.number_of[each.op.name] for each in reader.trace.arguments]
    return part_of(reader, nodes, [*roots, *also, *arguments], describe_handle)


def part_of(
    reader: Reader,
    nodes: Sequence[Node],
    roots: Iterable[int],
    describe_handle: Callable[[Any], str],
) -> Common:
    """The part that some operations need, these themselves included; arguments as `common_part`."""
    # Handles come first: where one is asked for may be in what is a rank's own.
    numbers = sorted(
        ancestors(nodes, list(roots)),
        key=lambda number: (number not in reader.handles, number),
    )
    place_of = {number: place for place, number in enumerate(numbers)}
    functions = _Functions(reader)
    lines = [_line(reader, functions, number, place_of, describe_handle) for number in numbers]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    return Common(numbers, lines, digest)


def first_difference(mine: Sequence[str], theirs: Sequence[str]) -> tuple[str, str]:
    """What two ranks have at the first place where they differ."""
    for one, other in zip(mine, theirs, strict=False):
        if one != other:
            return one, other
    end = "nothing more"
    shorter = min(len(mine), len(theirs))
    return (
        mine[shorter] if len(mine) > shorter else end,
        theirs[shorter] if len(theirs) > shorter else end,
    )


def _line(
    reader: Reader,
    functions: _Functions,
    number: int,
    place_of: dict[int, int],
    describe_handle: Callable[[Any], str],
) -> str:
    op = reader.operations[number]
    label = reader.trace.labels[number]
    if number in reader.handles:
        return describe_handle(reader.externals[number])
    if number in reader.externals:
        return f"a constant from outside of the step: {_digest_of_value(reader.externals[number])}"
    where = "outside of the model"
    if label is not None:
        collector = reader.trace.collector
        assert collector is not None
        where = _NUMBER_AT_END.sub("", collector.name_of(label))
        if label.partition is not None:
            where += f" in smp.partition({label.partition})"
    inputs = ",".join(f"{place_of[port.node]}:{port.output}" for port in reader.inputs[number])
    shapes = ",".join(str(output.shape) for output in op.outputs)
    attributes = functions.attributes(op.node_def)
    return f"{op.type} of shape {shapes} ({where}; inputs {inputs}; {attributes})"


class _Functions:
    """Attributes as text; of functions what they compute, not their names."""

    def __init__(self, reader: Reader) -> None:
        library = reader.trace.graph.as_graph_def().library
        self._definitions = {each.signature.name: each for each in library.function}
        self._digests: dict[str, str] = {}

    def attributes(self, node_def: Any) -> str:
        return " ".join(
            f"{key}={self._attribute(node_def.attr[key])}"
            for key in sorted(node_def.attr)
            if key not in _LEFT_OUT and not key.startswith("_")
        )

    def _attribute(self, value: Any) -> str:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._digest(value.func.name)
        if kind == "list" and value.list.func:
            return ",".join(self._digest(each.name) for each in value.list.func)
        serialized = value.SerializeToString(deterministic=True)
        if len(serialized) <= 16:
            return str(serialized.hex())
        return hashlib.sha256(serialized).hexdigest()[:16]

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = "recursive"
            self._digests[name] = self._digest_of(name)
        return self._digests[name]

    def _digest_of(self, name: str) -> str:
        definition = self._definitions.get(name)
        if definition is None:
            return _NUMBER_AT_END.sub("", name)
        lines = []
        renamed: dict[str, str] = {}
        for place, argument in enumerate(definition.signature.input_arg):
            renamed[argument.name] = f"input{place}"
        for place, node in enumerate(definition.node_def):
            renamed[node.name] = f"node{place}"
        for node in definition.node_def:
            inputs = ",".join(_renamed(each, renamed) for each in node.input)
            lines.append(f"{node.op} {inputs} {self.attributes(node)}")
        results = (definition.ret[each.name] for each in definition.signature.output_arg)
        lines.extend(_renamed(each, renamed) for each in results)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _digest_of_value(value: Any) -> str:
    array = value.numpy()
    content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"shape {array.shape}, {array.dtype}, digest {digest}"


def _renamed(name: str, renamed: dict[str, str]) -> str:
    control = "^" if name.startswith("^") else ""
    producer, separator, rest = name.removeprefix("^").partition(":")
    return f"{control}{renamed.get(producer, producer)}{separator}{rest}"
