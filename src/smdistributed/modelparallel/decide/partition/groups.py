# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Joins the nodes of a graph to groups, which stay together, and orders the groups.

Of one group are

    the nodes of one layer;
    the nodes that use one variable, and so all of all layers that share it;
    nodes that are colocated;
    a node that only feeds others, with the first group that uses what it makes. It has no layer, no
        variable and no operation that counts: a constant, or the arithmetic of shapes.

The order is that of first use: where the first node of a group that has operations is, in the
topological order of all nodes that is nearest to the order of their creation. A layer that is
called twice, or shares a variable with a later one, has tensors that go back in this order.

An input is in no group.

All of it is near linear in nodes and tensors.

Source: TensorFlow modelparallel specification, section 4.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.decide.partition.graph import Ends, Graph, Node

__all__ = ["Bond", "Groups", "group_nodes"]


class Bond(NamedTuple):
    """Nodes of a group, by number, and why they are together."""

    members: Sequence[int]
    cause: str


class Groups(NamedTuple):
    """The groups of a graph.

    Attributes:
        names: by group; that of its first layer, or else of its first node.
        group_of: by node; `None` for inputs.
        bonds: what made groups of nodes.
    """

    names: Sequence[str]
    group_of: Sequence[int | None]
    bonds: Sequence[Bond]


def group_nodes(graph: Graph) -> Groups:
    """The groups, in order of first use."""
    nodes = graph.nodes
    ends = graph.ends()
    bonds = list(_bonds(graph))
    leaders = _Leaders(len(nodes))
    for bond in bonds:
        for member in bond.members:
            leaders.join(bond.members[0], member)
    users = _users(nodes, ends)
    positions = _topological_positions(users)
    feeding = _only_feeding(nodes, users, bonds)
    first_use = _first_uses(nodes, leaders, positions, feeding)
    for node in sorted(feeding, key=positions.__getitem__, reverse=True):  # users come first
        user = min(users[node], key=lambda user: first_use[leaders.find(user)])
        leaders.follow(node, user)
    found = dict.fromkeys(leaders.find(node) for node in _no_inputs(nodes))
    number_of = {
        leader: number for number, leader in enumerate(sorted(found, key=first_use.__getitem__))
    }
    group_of = [
        None if node.is_input else number_of[leaders.find(number)]
        for number, node in enumerate(nodes)
    ]
    most_telling = sorted(_no_inputs(nodes), key=lambda node: (node in feeding, positions[node]))
    return Groups(_names(nodes, group_of, most_telling), group_of, bonds)


class _Leaders:
    """Disjoint sets of nodes, each known by one of them."""

    def __init__(self, num_nodes: int) -> None:
        self._leader = list(range(num_nodes))

    def find(self, node: int) -> int:
        leader = self._leader
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.find(one), self.find(other)))
        self._leader[second] = first

    def follow(self, node: int, other: int) -> None:
        """Joins a node to a set that keeps its leader."""
        self._leader[self.find(node)] = self.find(other)


def _no_inputs(nodes: Sequence[Node]) -> Iterator[int]:
    return (number for number, node in enumerate(nodes) if not node.is_input)


def _bonds(graph: Graph) -> Iterator[Bond]:
    """Of layers, variables and colocation, of two nodes and more."""
    layers: dict[str, list[int]] = {}
    variables: dict[str, list[int]] = {}
    for number in _no_inputs(graph.nodes):
        node = graph.nodes[number]
        if node.layer is not None:
            layers.setdefault(node.layer, []).append(number)
        for variable in node.variables:
            variables.setdefault(variable.name, []).append(number)
    for layer, members in layers.items():
        held = (each.name for member in members for each in graph.nodes[member].variables)
        first = next(held, None)
        holding = "" if first is None else f", which has the variable {first}"
        yield Bond(members, f"are of the layer {layer}{holding}")
    yield from (Bond(members, f"use the variable {name}") for name, members in variables.items())
    numbers = graph.numbers()
    for names in graph.colocated:
        members = [numbers[name] for name in names]
        members = [number for number in members if not graph.nodes[number].is_input]
        if members:
            yield Bond(members, "are colocated, as what passes between them cannot be sent")


def _users(nodes: Sequence[Node], ends: Sequence[Ends]) -> list[list[int]]:
    """By node, which others use what it makes."""
    users: list[list[int]] = [[] for _ in nodes]
    for producer, consumers in ends:
        users[producer].extend(
            user for user in consumers if user != producer and not nodes[user].is_input
        )
    return users


def _topological_positions(users: Sequence[Sequence[int]]) -> list[int]:
    """By node. Of nodes that could be next the first created is; so it is where a cycle blocks."""
    waits_for = [0] * len(users)
    for used_by in users:
        for user in used_by:
            waits_for[user] += 1
    ready = [node for node, count in enumerate(waits_for) if count == 0]
    positions = [-1] * len(users)
    unplaced = iter(range(len(users)))
    for position in range(len(users)):
        node = heapq.heappop(ready) if ready else next(n for n in unplaced if positions[n] < 0)
        positions[node] = position
        for user in users[node]:
            waits_for[user] -= 1
            if waits_for[user] == 0 and positions[user] < 0:
                heapq.heappush(ready, user)
    return positions


def _only_feeding(
    nodes: Sequence[Node], users: Sequence[Sequence[int]], bonds: Sequence[Bond]
) -> set[int]:
    bound = {member for bond in bonds for member in bond.members}
    return {
        number
        for number in _no_inputs(nodes)
        if nodes[number].operations == 0 and users[number] and number not in bound
    }


def _first_uses(
    nodes: Sequence[Node], leaders: _Leaders, positions: Sequence[int], feeding: set[int]
) -> dict[int, int]:
    """By leader, a position: of its first node with operations, or of its first node."""
    first_use: dict[int, tuple[bool, int]] = {}
    for number in _no_inputs(nodes):
        leader = leaders.find(number)
        key = (nodes[number].operations == 0, positions[number])
        first_use[leader] = min(first_use.get(leader, key), key)
    return {leader: position for leader, (_, position) in first_use.items()}


def _names(
    nodes: Sequence[Node], group_of: Sequence[int | None], most_telling: Iterable[int]
) -> list[str]:
    """By group: of its nodes, the most telling first, the first layer, or else the first node."""
    layers: dict[int, str] = {}
    operations: dict[int, str] = {}
    for number in most_telling:
        group, node = group_of[number], nodes[number]
        assert group is not None
        if node.layer is not None:
            layers.setdefault(group, node.layer)
        operations.setdefault(group, node.name)
    taken = set(layers.values())
    names = []
    for group in range(len(operations)):
        name = layers.get(group)
        if name is None:
            name = operations[group]
            while name in taken:  # a layer may have the name of an operation
                name += " (operation)"
            taken.add(name)
        names.append(name)
    return names
