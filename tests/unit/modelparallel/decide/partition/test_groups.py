# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Groups of a graph: what is joined, in which order, and under which name."""

from __future__ import annotations

import itertools

import pytest

from smdistributed.modelparallel.decide.partition import Graph, Node, Tensor, Variable
from smdistributed.modelparallel.decide.partition.groups import group_nodes
from smdistributed.modelparallel.exceptions import ConfigError


def _chained(*nodes: Node, colocated: tuple[tuple[str, ...], ...] = ()) -> Graph:
    tensors = [Tensor(before.name, (after.name,), 4) for before, after in itertools.pairwise(nodes)]
    return Graph(nodes, tensors, colocated)


def _groups(graph: Graph) -> list[tuple[str, list[str]]]:
    """In order, the name of each group and its nodes in order of creation."""
    groups = group_nodes(graph)
    found: dict[str, list[str]] = {name: [] for name in groups.names}
    for node, group in zip(graph.nodes, groups.group_of, strict=True):
        if group is not None:
            found[groups.names[group]].append(node.name)
    return list(found.items())


def _names(graph: Graph) -> list[str]:
    return list(group_nodes(graph).names)


def test_operations_of_one_layer_are_one_group() -> None:
    graph = _chained(Node("a1", "m/a"), Node("b1", "m/b"), Node("b2", "m/b"), Node("a2", "m/a"))
    assert _groups(graph) == [("m/a", ["a1", "a2"]), ("m/b", ["b1", "b2"])]


def test_operations_without_a_layer_are_groups_of_their_own() -> None:
    graph = _chained(Node("a", "m/a"), Node("add"), Node("mul"), Node("b", "m/b"))
    assert _names(graph) == ["m/a", "add", "mul", "m/b"]


def test_sharing_a_variable_merges_whole_layers() -> None:
    shared = (Variable("w", 8),)
    graph = _chained(
        Node("a1", "m/a", shared),
        Node("a2", "m/a"),
        Node("b", "m/b"),
        Node("c1", "m/c"),
        Node("c2", "m/c", shared),
        Node("add", variables=shared),
    )
    assert _groups(graph) == [("m/a", ["a1", "a2", "c1", "c2", "add"]), ("m/b", ["b"])]


def test_what_is_colocated_is_one_group() -> None:
    nodes = [Node("a", "m/a"), Node("b", "m/b"), Node("add"), Node("c", "m/c"), Node("mul")]
    graph = _chained(*nodes, colocated=(("add", "a"), ("c", "mul", "c")))
    assert _groups(graph) == [("m/a", ["a", "add"]), ("m/b", ["b"]), ("m/c", ["c", "mul"])]


def test_what_only_feeds_others_goes_with_the_first_that_uses_it() -> None:
    nodes = [
        Node("constant", operations=0),
        Node("x", is_input=True),
        Node("a", "m/a"),
        Node("shape", operations=0),
        Node("product", operations=0),
        Node("b", "m/b"),
        Node("c", "m/c"),
        Node("unused", operations=0),
    ]
    tensors = [
        Tensor("constant", ("c",), 4),
        Tensor("x", ("a",), 4),
        Tensor("a", ("shape", "b"), 4),
        Tensor("shape", ("product",), 4),
        Tensor("product", ("c", "b"), 4),
        Tensor("b", ("c",), 4),
        Tensor("c", ("unused",), 4),
    ]
    assert _groups(Graph(nodes, tensors)) == [
        ("m/a", ["a"]),
        ("m/b", ["shape", "product", "b"]),
        ("m/c", ["constant", "c"]),
        ("unused", ["unused"]),
    ]


def test_what_feeds_a_feeder_goes_where_that_goes() -> None:
    """Also if it is used later than something else, by a layer that was called before."""
    nodes = [
        Node("a1", "m/a"),
        Node("one", operations=0),
        Node("b", "m/b"),
        Node("two", operations=0),
        Node("a2", "m/a"),
    ]
    tensors = [
        Tensor("a1", ("b",), 4),
        Tensor("one", ("b", "two"), 4),
        Tensor("b", ("a2",), 4),
        Tensor("two", ("a2",), 4),
    ]
    assert _groups(Graph(nodes, tensors)) == [("m/a", ["a1", "one", "two", "a2"]), ("m/b", ["b"])]


def test_a_variable_that_is_read_early_does_not_move_its_layer_to_the_front() -> None:
    weight = (Variable("w", 8),)
    nodes = [
        Node("read", variables=weight, operations=0),
        Node("a", "m/a"),
        Node("b", "m/b", weight),
    ]
    graph = Graph(nodes, [Tensor("read", ("b",), 8), Tensor("a", ("b",), 4)])
    assert _groups(graph) == [("m/a", ["a"]), ("m/b", ["read", "b"])]


def test_the_order_is_topological_also_if_creation_is_not() -> None:
    nodes = [Node("c"), Node("a"), Node("d"), Node("b")]
    tensors = [Tensor("a", ("b",), 4), Tensor("b", ("c",), 4), Tensor("c", ("d",), 4)]
    assert _names(Graph(nodes, tensors)) == ["a", "b", "c", "d"]


def test_of_what_could_be_next_the_first_created_is() -> None:
    nodes = [Node("a"), Node("b"), Node("c"), Node("d")]
    assert _names(Graph(nodes, [Tensor("a", ("b", "c", "d"), 4)])) == ["a", "b", "c", "d"]
    assert _names(Graph(nodes, [Tensor("a", ("d", "c", "b"), 4)])) == ["a", "b", "c", "d"]


def test_where_nodes_are_a_cycle_the_first_created_comes_first() -> None:
    nodes = [
        Node("a"),
        Node("b"),
        Node("c"),
        Node("free1", operations=0),
        Node("free2", operations=0),
    ]
    tensors = [
        Tensor("a", ("b",), 4),
        Tensor("b", ("c", "b"), 4),
        Tensor("c", ("b",), 4),
        Tensor("free1", ("free2",), 4),
        Tensor("free2", ("free1",), 4),
    ]
    assert _groups(Graph(nodes, tensors)) == [
        ("a", ["a"]),
        ("b", ["b"]),
        ("c", ["c"]),
        ("free1", ["free1", "free2"]),
    ]


def test_names_of_groups_are_unique() -> None:
    graph = _chained(Node("m/a"), Node("b", "m/a"), Node("m/a (operation)"))
    assert _names(graph) == [
        "m/a (operation)",
        "m/a",
        "m/a (operation) (operation)",
    ]


def test_a_graph_may_be_empty_or_of_inputs_only() -> None:
    assert _groups(Graph([], [])) == []
    assert _groups(_chained(Node("x", is_input=True), Node("y", is_input=True))) == []


@pytest.mark.parametrize(
    ("nodes", "tensors", "colocated", "message"),
    [
        ([Node("a"), Node("a")], [], (), r"names 'a' twice; expected each node once"),
        ([Node("a", operations=-1)], [], (), r"a has -1 operations; expected 0 or more"),
        ([Node("a")], [Tensor("a", ("b",), 4)], (), r"a tensor of a names 'b'; expected the name"),
        ([Node("a")], [Tensor("a", ("a",), -4)], (), r"a tensor of a has -4 bytes; expected 0"),
        ([Node("a")], [], (("a", "b"),), r"colocated nodes names 'b'"),
        (
            [Node("a", None, (Variable("w", 4),)), Node("b", None, (Variable("w", 8),))],
            [],
            (),
            r"the variable w has 8 bytes in b, 4 before; expected one size",
        ),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(
    nodes: list[Node], tensors: list[Tensor], colocated: tuple[tuple[str, ...], ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Graph(nodes, tensors, colocated)
