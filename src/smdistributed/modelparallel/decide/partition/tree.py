# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which module goes to which partition: a cost-annotated tree of modules in, an assignment out.

What is minimised is the load of the fullest partition, as it sets the pace of a pipeline. A load
has two parts, as shares of the whole model's:

    what its modules cost    w x memory + (1 - w) x time, with w the parameter `memory_weight`
    what crosses its border  (1 - w) x the time of messages, for the sender and for the receiver

Messages follow the order of execution. A module's children are called one after the other, and
what one returns goes straight to the next one's partition; to the caller's at the end. So a
message crosses wherever two neighbours in the row caller, child, ..., child, caller are apart.

What belongs together is a group of the problem that `search` works on. One of the assignments that
it starts from is made here, the tree partition of the original: cut the children into runs, hand
partitions to runs by d'Hondt's rule, go on inside. No randomness: the same tree gives the same
answer on every rank.

Source: modelparallel specification, sections 3.8 and 7; M. Balinski and H. P. Young, "Fair
Representation", for d'Hondt's rule.
"""

import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence

from smdistributed.modelparallel.decide.partition.assignment import Assignment, Share
from smdistributed.modelparallel.decide.partition.placement import Placement
from smdistributed.modelparallel.decide.partition.problem import Flow, Problem
from smdistributed.modelparallel.decide.partition.search import alternative, search
from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["Link", "Module", "assign"]


@dataclasses.dataclass(frozen=True)
class Module:
    """A module and what it costs, without its children.

    Attributes:
        name: its path, as users know it; unique in the tree.
        memory_bytes: parameters with what training adds to them, and activations.
        seconds: of computing, forward and backward; any unit, if it is the same everywhere.
        input_bytes, output_bytes: what a call brings and what it returns.
        has_parameters: of its own. One that has none runs where its parent does.
        shares: keys of parameters that other modules hold too: those go together.
        children: in order of execution.
    """

    name: str
    memory_bytes: float = 0.0
    seconds: float = 0.0
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    has_parameters: bool = True
    shares: frozenset[Hashable] = frozenset()
    children: tuple["Module", ...] = ()


@dataclasses.dataclass(frozen=True)
class Link:
    """What a message between partitions costs each side, in the unit of `Module.seconds`."""

    call_s: float = 0.0
    bytes_per_s: float = float("inf")

    def seconds(self, size_bytes: float) -> float:
        """Of a message of this size."""
        return self.call_s + size_bytes / self.bytes_per_s


def assign(
    root: Module, partitions: int, memory_weight: float, link: Link | None = None
) -> Assignment:
    """Finds a partition for each module.

    Args:
        root: the model.
        partitions: how many there are.
        memory_weight: of memory against time, 0 to 1.
        link: what messages cost; `None`: nothing.

    Raises:
        ConfigError: there is no such number of partitions, or a name appears twice.
    """
    if partitions < 1:
        raise ConfigError(f"{partitions} partitions; expected one or more.")
    tree = _Tree(root, memory_weight, link or Link())
    found = search(tree.problem, partitions, [_by_tree(tree, partitions)])
    return _explained(tree, found)


class _Tree:
    """The tree as arrays, with nodes in order of execution, and the problem that it poses."""

    def __init__(self, root: Module, memory_weight: float, link: Link) -> None:
        self.root = root
        self.modules: list[Module] = []
        self.parents: list[int] = []
        for module, parent in _walk(root, -1, itertools.count()):
            self.modules.append(module)
            self.parents.append(parent)
        names = [module.name for module in self.modules]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"the tree of modules names {twice!r} twice; expected each once.")
        memory = sum(module.memory_bytes for module in self.modules)
        time = sum(module.seconds for module in self.modules)
        self.memory_share = [_share(module.memory_bytes, memory) for module in self.modules]
        self.time_share = [_share(module.seconds, time) for module in self.modules]
        self.weights = [
            memory_weight * in_memory + (1 - memory_weight) * in_time
            for in_memory, in_time in zip(self.memory_share, self.time_share, strict=True)
        ]
        self.group_of = _groups(self.modules, self.parents)
        weights = [0.0] * (max(self.group_of) + 1)
        for group, weight in zip(self.group_of, self.weights, strict=True):
            weights[group] += weight
        messages = [
            (self.group_of[at], self.group_of[neighbour], size)
            for at, neighbour, size in self._row_pairs()
        ]
        flows = [
            Flow(one, (other,), size, (1 - memory_weight) * _share(link.seconds(size), time))
            for one, other, size in messages
            if one != other  # what goes on inside of a group is free
        ]
        self.problem = Problem(weights, flows)

    def is_below(self, node: int, ancestor: int) -> bool:
        """Whether a node is in the tree of another one."""
        while node > ancestor:  # parents come first
            node = self.parents[node]
        return node == ancestor

    def _row_pairs(self) -> Iterator[tuple[int, int, float]]:
        """Neighbours in the rows of all callers, and the bytes that pass between them."""
        children: list[list[int]] = [[] for _ in self.modules]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(node)
        for caller, called in enumerate(children):
            if not called:
                continue
            yield caller, called[0], self.modules[called[0]].input_bytes
            for before, after in itertools.pairwise(called):
                yield before, after, self.modules[before].output_bytes
            yield called[-1], caller, self.modules[called[-1]].output_bytes


def _walk(module: Module, parent: int, numbers: Iterator[int]) -> Iterator[tuple[Module, int]]:
    """All modules below and including this one, each with its parent's number, callers first."""
    # Not recursive: models may be nested deeper than Python's stack.
    stack = [(module, parent)]
    while stack:
        module, parent = stack.pop()
        number = next(numbers)
        yield module, parent
        stack.extend((child, number) for child in reversed(module.children))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _groups(modules: Sequence[Module], parents: Sequence[int]) -> list[int]:
    """By node, the number of its group: by their first nodes, so the root's is 0."""
    leader = list(range(len(modules)))

    def find(node: int) -> int:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    def join(one: int, other: int) -> None:
        first, second = sorted((find(one), find(other)))
        leader[second] = first

    holder: dict[Hashable, int] = {}
    for node, module in enumerate(modules):
        if not module.has_parameters and parents[node] >= 0:
            join(node, parents[node])
        for key in sorted(module.shares, key=repr):
            join(node, holder.setdefault(key, node))
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(node), len(numbers)) for node in range(len(modules))]


# --- The start ---


def _by_tree(tree: _Tree, partitions: int) -> list[int]:
    """The original's algorithm, by group."""
    below = [list[int]() for _ in tree.modules]
    totals = list(tree.weights)
    for node in range(len(totals) - 1, 0, -1):
        totals[tree.parents[node]] += totals[node]
    for node in range(1, len(totals)):
        below[tree.parents[node]].append(node)
    places = [-1] * tree.problem.num_groups
    queue: list[tuple[int, list[int]]] = [(0, list(range(partitions)))]
    for node, own in queue:  # it grows: breadth first
        group = tree.group_of[node]
        if places[group] < 0:
            places[group] = own[0]
        if below[node]:
            queue.extend(_share_out(below[node], own, totals))
    return places


def _share_out(
    nodes: list[int], own: list[int], totals: Sequence[float]
) -> list[tuple[int, list[int]]]:
    """Which of the partitions in `own` each of the nodes may use."""
    if len(own) == 1 or len(nodes) == 1:
        return [(node, own) for node in nodes]
    costs = [totals[node] for node in nodes]
    runs = _cut(costs, min(len(own), len(nodes)))
    if len(runs) == 1:  # all but one cost nothing
        return [(node, own) for node in nodes]
    weights = [sum(costs[begin:end]) for begin, end in runs]
    given: list[list[int]] = [[] for _ in runs]
    for partition in own:  # d'Hondt: to who has most for what it already has
        most = max(range(len(runs)), key=lambda i: (weights[i] / (len(given[i]) + 1), -i))
        given[most].append(partition)
    # In order of execution, so that neighbours get neighbouring partitions.
    rest = iter(own)
    shared = []
    for (begin, end), count in zip(runs, map(len, given), strict=True):
        mine = list(itertools.islice(rest, count)) or own[:1]
        if len(mine) > 1 and end - begin > 1:
            shared.extend(_share_out(nodes[begin:end], mine, totals))
        else:
            shared.extend((node, mine) for node in nodes[begin:end])
    return shared


def _cut(costs: Sequence[float], most: int) -> list[tuple[int, int]]:
    """At most so many runs, of which the largest costs least."""
    low, high = max(costs, default=0.0), sum(costs)
    for _ in range(60):
        middle = (low + high) / 2
        if len(_fill(costs, middle)) <= most:
            high = middle
        else:
            low = middle
    return _fill(costs, high)


def _fill(costs: Sequence[float], bound: float) -> list[tuple[int, int]]:
    """Runs that cost no more than `bound` each, or are a single item."""
    runs, begin, filled = [], 0, 0.0
    for i, cost in enumerate(costs):
        if i > begin and filled + cost > bound:
            runs.append((begin, i))
            begin, filled = i, 0.0
        filled += cost
    return [*runs, (begin, len(costs))]


# --- Explaining ---


def _explained(tree: _Tree, placement: Placement) -> Assignment:
    places = placement.places
    holders: dict[Hashable, list[int]] = {}
    for node, module in enumerate(tree.modules):
        for key in module.shares:
            holders.setdefault(key, []).append(node)
    movable = _moving_together(tree, places)
    names = [module.name for module in tree.modules]
    shares = map(Share, tree.memory_share, tree.time_share)
    return Assignment(
        partition_of={
            name: places[group] for name, group in zip(names, tree.group_of, strict=True)
        },
        loads=tuple(placement.loads),
        crossing_bytes=tree.problem.crossing_bytes(places),
        shares=dict(zip(names, shares, strict=True)),
        reasons={
            name: "; ".join(_bonds(tree, node, holders) + alternative(placement, movable[node]))
            for node, name in enumerate(names)
        },
    )


def _bonds(tree: _Tree, node: int, holders: Mapping[Hashable, Sequence[int]]) -> list[str]:
    """What a module has to be with."""
    if node == 0:
        return ["the root runs on partition 0"]
    module = tree.modules[node]
    if not module.has_parameters:
        parent = tree.modules[tree.parents[node]].name
        return [f"it goes with {parent}, as what has no parameters or is not called does"]
    bonds = ["it goes with the root"] if tree.group_of[node] == 0 else []
    others = sorted({each for key in module.shares for each in holders[key]} - {node})
    others = [each for each in others if not tree.is_below(each, node)]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        bonds.append(f"it shares parameters with {tree.modules[others[0]].name}{more}")
    return bonds


def _moving_together(tree: _Tree, places: Sequence[int]) -> list[frozenset[int]]:
    """By node, the groups whose next best place is of interest.

    Of a module that is in one place with all below it, while its parent is not: all of them, as
    that is what one would think of moving. Of others: its own.
    """
    num_nodes = len(tree.modules)
    ends = list(range(1, num_nodes + 1))  # a module's tree is the range from it to its end
    is_whole = [True] * num_nodes
    for node in range(num_nodes - 1, 0, -1):
        parent = tree.parents[node]
        ends[parent] = max(ends[parent], ends[node])
        is_same = places[tree.group_of[node]] == places[tree.group_of[parent]]
        is_whole[parent] &= is_whole[node] and is_same
    together = [frozenset((group,)) for group in tree.group_of]
    for node in range(1, num_nodes):
        if is_whole[node] and not is_whole[tree.parents[node]]:
            together[node] = frozenset(tree.group_of[node : ends[node]])
    return together
