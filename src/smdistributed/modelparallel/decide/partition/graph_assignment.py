# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which operations of a graph go to which partition: decided, or as the script says.

    assign_graph     decides
    assign_by_hand   checks what a script says of nodes, and completes it

Both are about groups (`groups`). A group weighs

    w x bytes of variables  +  (1 - w) x (operations + variables) / 2

each as a share of the model's, with w the parameter `memory_weight`. A term that the model has
nothing of is left out, and the others count for it.

An input crosses nowhere, and is said to be in the lowest partition that uses it.

Source: TensorFlow modelparallel specification, section 4; the weights between bytes and counts are
our choice.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from smdistributed.modelparallel.decide.partition.assignment import Assignment, Share
from smdistributed.modelparallel.decide.partition.contiguous import cut, next_best
from smdistributed.modelparallel.decide.partition.graph import Graph, Node
from smdistributed.modelparallel.decide.partition.groups import Bond, Groups, group_nodes
from smdistributed.modelparallel.decide.partition.placement import Placement
from smdistributed.modelparallel.decide.partition.problem import Flow, Problem
from smdistributed.modelparallel.decide.partition.search import alternative, search
from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["GraphAssignment", "assign_by_hand", "assign_graph"]

_MOST_BONDS = 3  # that a reason lists
# What all that passes between groups would cost each of its ends, as a share of the model's weight:
# little, so that it is balance which decides, but of equal ways the one with few bytes is better.
_CROSSING = 0.1


@dataclasses.dataclass(frozen=True)
class GraphAssignment(Assignment):
    """A decision about a graph.

    Its `partition_of`, `shares` and `reasons` are by name of group, in order of first use. A group
    has the name of its first layer, or else of its first node.

    Attributes:
        group_of: by name of node, the name of its group; inputs are in none.
        group_of_layer: by label of layer, the name of its group.
        partition_of_input: by name of node.
    """

    group_of: Mapping[str, str]
    group_of_layer: Mapping[str, str]
    partition_of_input: Mapping[str, int]

    def partition_of_node(self, name: str) -> int:
        """Where a node is.

        Raises:
            KeyError: the graph has no such node.
        """
        if name in self.partition_of_input:
            return self.partition_of_input[name]
        return self.partition_of[self.group_of[name]]


def assign_graph(
    graph: Graph, partitions: int, memory_weight: float, *, contiguous: bool = True
) -> GraphAssignment:
    """Finds a partition for each group.

    Args:
        graph: the model.
        partitions: how many there are.
        memory_weight: of bytes against counts, 0 to 1.
        contiguous: partitions never decrease in the order of groups, and few bytes between them
            come first (module `contiguous`). If not, a search, for which the largest load does.

    Raises:
        ConfigError: there is no such number of partitions.
    """
    _check_number(partitions)
    groups = group_nodes(graph)
    problem = _problem(graph, groups, memory_weight)
    places = cut(problem, partitions)
    if contiguous:
        reasons = next_best(problem, places)
        return _assignment(graph, groups, Placement(problem, places, partitions), reasons)
    placement = _searched(problem, partitions, places)
    found = (alternative(placement, frozenset((group,))) for group in range(problem.num_groups))
    return _assignment(graph, groups, placement, ["; ".join(each) for each in found])


def assign_by_hand(
    graph: Graph,
    partitions: int,
    memory_weight: float,
    partition_of_node: Mapping[str, int],
    default_partition: int,
) -> GraphAssignment:
    """Checks what a script says of nodes, and says where each group is.

    What it says of inputs, and of nodes that have no operation that counts, is of no account: they
    go with their group.

    Args:
        graph: the model.
        partitions: how many there are.
        memory_weight: of bytes against counts in the loads, 0 to 1.
        partition_of_node: by name of node; names that the graph does not have are ignored.
        default_partition: of the other nodes.

    Raises:
        ConfigError: there is no such partition; or a layer, or what uses one variable, or what is
            colocated, is in two partitions.
    """
    _check_number(partitions)
    wanted = [partition_of_node.get(node.name, default_partition) for node in graph.nodes]
    for node, place in zip(graph.nodes, wanted, strict=True):
        if not 0 <= place < partitions:
            raise ConfigError(
                f"{node.label} is to go to partition {place}; expected 0 to {partitions - 1}, as"
                f" there are {partitions} partitions."
            )
    groups = group_nodes(graph)
    for bond in groups.bonds:
        _check_bond(graph.nodes, bond, wanted)
    places = _places_by_hand(graph.nodes, groups, wanted)
    placement = Placement(_problem(graph, groups, memory_weight), places, partitions)
    return _assignment(graph, groups, placement, ["as the script says"] * len(places))


def _searched(problem: Problem, partitions: int, start: Sequence[int]) -> Placement:
    """Without contiguity; partitions are numbered in the order of the first groups in them."""
    whole = sum(flow.size_bytes for flow in problem.flows)
    flows = [
        dataclasses.replace(flow, cost=_CROSSING * flow.size_bytes / whole)
        for flow in problem.flows
    ]
    problem = Problem(problem.weights, flows)
    if not problem.num_groups:
        return Placement(problem, start, partitions)
    found = search(problem, partitions, [start])
    numbers: dict[int, int] = {}
    places = [numbers.setdefault(place, len(numbers)) for place in found.places]
    return Placement(problem, places, partitions)


def _check_number(partitions: int) -> None:
    if partitions < 1:
        raise ConfigError(f"{partitions} partitions; expected one or more.")


def _check_bond(nodes: Sequence[Node], bond: Bond, wanted: Sequence[int]) -> None:
    counting = [number for number in bond.members if nodes[number].operations]
    other = next((number for number in counting if wanted[number] != wanted[counting[0]]), None)
    if other is None:
        return
    (one, here), (two, there) = ((nodes[i], wanted[i]) for i in (counting[0], other))
    raise ConfigError(
        f"{one.label} is in partition {here} ({one.name}) and {two.label} in partition {there}"
        f" ({two.name}), but they {bond.cause}; expected one partition. Put both under the same"
        " smp.partition."
    )


def _places_by_hand(nodes: Sequence[Node], groups: Groups, wanted: Sequence[int]) -> list[int]:
    """By group: where its nodes with operations are, or where its first node is."""
    decided: dict[int, int] = {}  # by group, the node that decides
    for number, group in enumerate(groups.group_of):
        if group is None:
            continue
        decisive = decided.setdefault(group, number)
        if not nodes[number].operations:
            continue
        if not nodes[decisive].operations:
            decided[group] = number
        elif wanted[number] != wanted[decisive]:  # only what others are bound to joins the two
            one, two = nodes[decisive], nodes[number]
            raise ConfigError(
                f"{one.label} is in partition {wanted[decisive]} and {two.label} in partition"
                f" {wanted[number]}, but layers, variables and colocation join them to one group"
                f" ({groups.names[group]}); expected one partition. Put both under the same"
                " smp.partition."
            )
    return [wanted[decided[group]] for group in range(len(groups.names))]


# --- The problem ---


def _problem(graph: Graph, groups: Groups, memory_weight: float) -> Problem:
    memory, operations, variables = _counts(graph, groups)
    terms = [
        (memory_weight, memory),
        ((1 - memory_weight) / 2, operations),
        ((1 - memory_weight) / 2, variables),
    ]
    terms = [(weight, counts) for weight, counts in terms if weight and any(counts)]
    terms = terms or [(1.0, operations)]
    of_all = sum(weight for weight, _ in terms)
    shares = [(weight / of_all, _shares(counts)) for weight, counts in terms]
    weights = [
        sum(weight * share[group] for weight, share in shares) for group in range(len(groups.names))
    ]
    return Problem(weights, _flows(graph, groups))


def _counts(graph: Graph, groups: Groups) -> tuple[list[int], list[int], list[int]]:
    """By group: bytes of variables, operations, variables."""
    memory, operations, variables = ([0] * len(groups.names) for _ in range(3))
    seen: set[str] = set()
    for node, group in zip(graph.nodes, groups.group_of, strict=True):
        if group is None:
            continue
        operations[group] += node.operations
        for variable in node.variables:
            if variable.name not in seen:  # all that use it are of this group
                seen.add(variable.name)
                memory[group] += variable.size_bytes
                variables[group] += 1
    return memory, operations, variables


def _shares(counts: Sequence[int]) -> list[float]:
    whole = sum(counts) or 1
    return [count / whole for count in counts]


def _flows(graph: Graph, groups: Groups) -> list[Flow]:
    """What passes between groups; of equal ends one flow."""
    sizes: dict[tuple[int, tuple[int, ...]], int] = {}
    for tensor, (producer, consumers) in zip(graph.tensors, graph.ends(), strict=True):
        source = groups.group_of[producer]
        used_in = {groups.group_of[consumer] for consumer in consumers} - {source, None}
        if source is None or not used_in or not tensor.size_bytes:
            continue
        ends = source, tuple(sorted(group for group in used_in if group is not None))
        sizes[ends] = sizes.get(ends, 0) + tensor.size_bytes
    return [Flow(producer, consumers, size) for (producer, consumers), size in sizes.items()]


# --- The answer ---


def _assignment(
    graph: Graph,
    groups: Groups,
    placement: Placement,
    alternatives: Sequence[str],
) -> GraphAssignment:
    memory, operations, variables = map(_shares, _counts(graph, groups))
    bonds = _reasons_of_bonds(graph.nodes, groups)
    reasons = [
        "; ".join(filter(None, (*bonds.get(group, ()), alternative)))
        for group, alternative in enumerate(alternatives)
    ]
    names, places = groups.names, placement.places
    group_of = {
        node.name: names[group]
        for node, group in zip(graph.nodes, groups.group_of, strict=True)
        if group is not None
    }
    return GraphAssignment(
        partition_of=dict(zip(names, places, strict=True)),
        loads=tuple(placement.loads),
        crossing_bytes=placement.problem.crossing_bytes(places),
        shares={
            name: Share(memory[group], (operations[group] + variables[group]) / 2)
            for group, name in enumerate(names)
        },
        reasons=dict(zip(names, reasons, strict=True)),
        group_of=group_of,
        group_of_layer={
            node.layer: group_of[node.name]
            for node in graph.nodes
            if node.layer is not None and not node.is_input
        },
        partition_of_input=_places_of_inputs(graph, groups, places),
    )


def _reasons_of_bonds(nodes: Sequence[Node], groups: Groups) -> dict[int, list[str]]:
    """By group, what joins parts of it that users know by different names."""
    told: dict[int, list[str]] = {}
    untold: dict[int, int] = {}
    for bond in groups.bonds:
        group = groups.group_of[bond.members[0]]
        assert group is not None
        labels = list(dict.fromkeys(nodes[i].label for i in bond.members if nodes[i].operations))
        if len(labels) < 2:
            continue
        texts = told.setdefault(group, [])
        if len(texts) == _MOST_BONDS:
            untold[group] = untold.get(group, 0) + 1
            continue
        more = (
            f", {labels[1]} and {len(labels) - 2} more" if len(labels) > 2 else f" and {labels[1]}"
        )
        texts.append(f"{labels[0]}{more} {bond.cause}")
    for group, count in untold.items():
        told[group].append(f"{count} more such bonds")
    return told


def _places_of_inputs(graph: Graph, groups: Groups, places: Sequence[int]) -> dict[str, int]:
    """By name; partition 0 for one that nothing uses."""
    lowest: dict[int, int] = {}
    for producer, consumers in graph.ends():
        if graph.nodes[producer].is_input:
            used_in = (groups.group_of[consumer] for consumer in consumers)
            found = [places[group] for group in used_in if group is not None]
            lowest[producer] = min([lowest.get(producer, len(places)), *found])
    return {
        node.name: lowest.get(number, 0) for number, node in enumerate(graph.nodes) if node.is_input
    }
