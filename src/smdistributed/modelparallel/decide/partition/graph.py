# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is to be cut, if it is a graph: operations, and the tensors between them.

Source: TensorFlow modelparallel specification, section 4.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["Graph", "Node", "Tensor", "Variable"]


class Variable(NamedTuple):
    """Of a model, trainable or not."""

    name: str  # unique in the model
    size_bytes: int


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation, or several that are not to be told apart.

    Attributes:
        name: unique in the graph.
        layer: label of the layer that it belongs to, as a path; `None`: of none.
        variables: that it reads or writes, also if it takes what another operation has read.
        operations: how many it has that count. 0 for what may be made again wherever it is used: a
            constant, the arithmetic of shapes, the read of a variable.
        is_input: every rank has it without a message.
    """

    name: str
    layer: str | None = None
    variables: tuple[Variable, ...] = ()
    operations: int = 1
    is_input: bool = False

    @property
    def label(self) -> str:
        """Its name for users: that of its layer, if it has one."""
        return self.name if self.layer is None else self.layer


class Tensor(NamedTuple):
    """What passes between nodes.

    Attributes:
        producer: name of a node.
        consumers: names of nodes; may repeat, and may name the producer.
        size_bytes: of one microbatch; 0 for what never crosses.
    """

    producer: str
    consumers: tuple[str, ...]
    size_bytes: int


class Ends(NamedTuple):
    """Of a tensor, numbers of nodes."""

    producer: int
    consumers: tuple[int, ...]  # each once


@dataclasses.dataclass(frozen=True)
class Graph:
    """Nodes and what is between them; checked when it is made.

    Attributes:
        nodes: in order of creation. They are numbered in this order.
        tensors: between them.
        colocated: names of nodes that stay together, set by set.

    Raises:
        ConfigError: a name appears twice or is of no node, a variable has two sizes, or a size or a
            count is negative.
    """

    nodes: Sequence[Node]
    tensors: Sequence[Tensor]
    colocated: Sequence[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)
        names = {node.name for node in self.nodes}
        for tensor in self.tensors:
            _check_names(
                (tensor.producer, *tensor.consumers), names, f"a tensor of {tensor.producer}"
            )
            if tensor.size_bytes < 0:
                raise ConfigError(
                    f"a tensor of {tensor.producer} has {tensor.size_bytes} bytes;"
                    " expected 0 or more."
                )
        for together in self.colocated:
            _check_names(together, names, "a set of colocated nodes")

    def ends(self) -> list[Ends]:
        """By tensor."""
        numbers = self.numbers()
        return [
            Ends(numbers[producer], tuple(dict.fromkeys(numbers[name] for name in consumers)))
            for producer, consumers, _ in self.tensors
        ]

    def numbers(self) -> dict[str, int]:
        """By name of node, its number."""
        return {node.name: number for number, node in enumerate(self.nodes)}


def _check_nodes(nodes: Iterable[Node]) -> None:
    names: set[str] = set()
    sizes: dict[str, int] = {}
    for node in nodes:
        if node.name in names:
            raise ConfigError(f"the graph names {node.name!r} twice; expected each node once.")
        names.add(node.name)
        if node.operations < 0:
            raise ConfigError(f"{node.name} has {node.operations} operations; expected 0 or more.")
        for variable in node.variables:
            known = sizes.setdefault(variable.name, variable.size_bytes)
            if variable.size_bytes != known or known < 0:
                raise ConfigError(
                    f"the variable {variable.name} has {variable.size_bytes} bytes in {node.name},"
                    f" {known} before; expected one size of 0 or more."
                )


def _check_names(given: Iterable[str], names: set[str], where: str) -> None:
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise ConfigError(f"{where} names {unknown!r}; expected the name of a node of the graph.")
