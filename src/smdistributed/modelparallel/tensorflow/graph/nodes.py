# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A traced step as plain data: its operations, what they need, and where they run.

Here the framework ends: what is cut, and how, is worked out on these nodes alone, and can be tested
on small ones written by hand.

Source: TensorFlow modelparallel specification, sections 3.2 to 3.5.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

__all__ = ["EFFECTS", "EVERYWHERE", "Node", "Port", "Role", "ancestors", "chain_of", "needed_ports"]

T = TypeVar("T")

EFFECTS = "effects"
"""The state that operations change which touch none of ours, such as what prints."""

EVERYWHERE = -1
"""The home of operations outside of the model: each rank that needs their results runs its own."""


class Port(NamedTuple):
    """An output of a node: one tensor."""

    node: int
    output: int = 0


class Role(enum.Enum):
    """What is particular about a node."""

    PLAIN = enum.auto()
    # Costs next to nothing and needs nothing from others (constants, reads of variables that the
    # step does not change): every segment that needs it has its own.
    FREE = enum.auto()
    # An argument of the step function; each rank has its own.
    ARGUMENT = enum.auto()
    # A resource, such as a variable; each rank has its own handle.
    HANDLE = enum.auto()

    @property
    def is_cloned(self) -> bool:
        """Whether every segment that needs it has its own."""
        return self is not Role.PLAIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """One operation of a traced step.

    Attributes:
        name: in the traced graph; for messages, and to find the operation.
        inputs: the tensors that it needs.
        home: the partition that runs it, or `EVERYWHERE`.
        role: what is particular about it.
        is_gradient: it was made by taking gradients.
        takes_shape: it needs of its input the shape alone.
        reads, changes: the states that it touches, such as variables: keys.
        must_run: whether or not somebody needs a result: it changes something.
        can_run_again: from the same inputs it makes the same results later in the step, and changes
            nothing.
    """

    name: str
    inputs: tuple[Port, ...] = ()
    home: int = EVERYWHERE
    role: Role = Role.PLAIN
    is_gradient: bool = False
    takes_shape: bool = False
    reads: frozenset[Hashable] = frozenset()
    changes: frozenset[Hashable] = frozenset()
    must_run: bool = False
    can_run_again: bool = False


def ancestors(nodes: Sequence[Node], of: Sequence[int]) -> set[int]:
    """The nodes of which the given ones need something, and these themselves."""
    found: set[int] = set()
    stack = list(of)
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(port.node for port in nodes[number].inputs)
    return found


def needed_ports(nodes: Sequence[Node], numbers: Iterable[int]) -> Iterator[Port]:
    """What nodes need, clones of theirs included; each once."""
    stack = [port for number in numbers for port in nodes[number].inputs][::-1]
    seen: set[Port] = set()
    while stack:
        port = stack.pop()
        if port in seen:
            continue
        seen.add(port)
        yield port
        if nodes[port.node].role.is_cloned:
            stack.extend(nodes[port.node].inputs)


def chain_of(touched: Iterable[tuple[T, bool]]) -> Iterator[tuple[T, T]]:
    """Of what touches one state, as the program was written: pairs, of which the first comes first.

    The last change comes before the reads after it, and these before the next change.

    Args:
        touched: each, and whether it changes the state.
    """
    last_change: list[T] = []  # one, or none
    reads: list[T] = []
    for each, changes in touched:
        yield from ((earlier, each) for earlier in (changes and reads) or last_change)
        if changes:
            last_change, reads = [each], []
        else:
            reads.append(each)
