# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Cutting, on nodes written by hand: what runs where, in which segments, and what is sent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from smdistributed.modelparallel.decide.schedules import SCHEDULES, ordering, schedule_named
from tests.unit.modelparallel.tensorflow.graph.without_tensorflow import load

NODES, CUTTING = load("graph.nodes", "graph.cutting")
EVERYWHERE, EFFECTS, Node, Port, Role = (
    getattr(NODES, name) for name in ("EVERYWHERE", "EFFECTS", "Node", "Port", "Role")
)
FREE, ARGUMENT, HANDLE = Role.FREE, Role.ARGUMENT, Role.HANDLE


class Written:
    """Nodes by name; each has one output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._numbers: dict[str, int] = {}

    def add(self, name: str, *inputs: str, home: int = EVERYWHERE, **kwargs: Any) -> None:
        for key in ("reads", "changes"):
            kwargs[key] = frozenset(kwargs.get(key, ()))
        kwargs.setdefault("must_run", bool(kwargs["changes"]))
        self._numbers[name] = len(self.nodes)
        ports = tuple(self.port(each) for each in inputs)
        self.nodes.append(Node(name=name, inputs=ports, home=home, **kwargs))

    def gradient(self, name: str, *inputs: str, **kwargs: Any) -> None:
        self.add(name, *inputs, is_gradient=True, **kwargs)

    def port(self, name: str) -> Any:
        return Port(self._numbers[name])

    def cut(self, ranks: int, *wanted: str, recomputes: bool = False) -> Any:
        """The plan; `wanted` are names by rank, apart by blanks."""
        ports = [[self.port(name) for name in each.split()] for each in wanted]
        return CUTTING.cut(self.nodes, ranks, ports or [[]] * ranks, recomputes)

    def segments(self, plan: Any) -> dict[str, str]:
        return {
            str(key): " ".join(self.nodes[each].name for each in segment.nodes)
            for key, segment in plan.segments.items()
        }

    def again(self, plan: Any) -> dict[str, tuple[str, str, str]]:
        """By segment before which something runs again: what, from what, and to make what."""
        return {
            str(key): (
                " ".join(self.nodes[each].name for each in segment.again.nodes),
                " ".join(self.nodes[each.node].name for each in segment.again.inputs),
                " ".join(self.nodes[each.node].name for each in sorted(segment.again.outputs)),
            )
            for key, segment in plan.segments.items()
            if segment.again
        }

    def edges(self, plan: Any) -> list[str]:
        return [
            f"{self.nodes[edge.port.node].name}: {edge.source} to {edge.destination}"
            for edge in plan.edges
        ]


def two_layers() -> Written:
    """Two dense layers, one on each of two ranks, and their gradients."""
    graph = Written()
    graph.add("x", role=ARGUMENT)
    graph.add("labels", role=ARGUMENT)
    graph.add("w0", role=FREE)
    graph.add("w1", role=FREE)
    graph.add("h", "x", "w0", home=0)
    graph.add("y", "h", "w1", home=1)
    graph.add("loss", "y", "labels")
    graph.gradient("dy", "y", "labels")
    graph.gradient("dw1", "h", "dy", home=1)
    graph.gradient("dh", "w1", "dy", home=1)
    graph.gradient("dw0", "x", "dh", home=0)
    return graph


def test_two_layers() -> None:
    graph = two_layers()
    plan = graph.cut(2, "loss dw0", "loss dw1")
    assert graph.segments(plan) == {
        "F0@0": "h",
        "F1@1": "y loss",
        "B1@1": "dy dw1 dh",
        "F2@0": "loss",
        "B2@0": "dw0",
    }
    assert graph.edges(plan) == ["h: 0 to 1", "y: 1 to 0", "dh: 1 to 0"]
    backward = next(each for key, each in plan.segments.items() if str(key) == "B1@1")
    assert set(backward.inputs) == {graph.port("y"), graph.port("h")}, "weights are not kept"


def deep(**kwargs: Any) -> Written:
    """Three operations on each of two ranks, and their gradients, which need what went in."""
    graph = Written()
    graph.add("x", role=ARGUMENT)
    graph.add("w", role=FREE)
    names = [f"{name}{home}" for home in range(2) for name in "abc"]
    for name, needed in zip(names, ["x", *names], strict=False):
        mine = {"can_run_again": True, **(kwargs if name[0] == "b" else {})}
        graph.add(name, needed, "w", home=int(name[1]), **mine)
    gradients = [f"d{name}" for name in names[::-1]]
    needed_by = [*names[-2::-1], "x"]
    given_to = [names[-1], *gradients[:-1]]
    for name, needed, given in zip(names[::-1], needed_by, given_to, strict=True):
        graph.gradient(f"d{name}", needed, given, home=int(name[1]))
    return graph


def test_a_backward_runs_again_what_it_needs_of_the_forward_of_its_rank() -> None:
    graph = deep()
    kept = graph.cut(2, "da0", "c1")
    plan = graph.cut(2, "da0", "c1", recomputes=True)
    assert graph.again(kept) == {}
    assert graph.again(plan) == {
        "B1@1": ("a1 b1 c1", "c0", "a1 b1 c1"),  # c0 came from rank 0
        "B2@0": ("a0 b0", "", "a0 b0"),
    }
    for segment in plan.segments.values():
        segment.again = None
    assert plan == kept, "all else is the same"


def test_what_cannot_run_again_is_kept() -> None:
    graph = deep(can_run_again=False)
    plan = graph.cut(2, "da0", "c1", recomputes=True)
    assert graph.again(plan) == {
        "B1@1": ("a1 c1", "c0 b1", "a1 c1"),
        "B2@0": ("a0", "", "a0"),
    }


def test_what_nobody_wants_does_not_run() -> None:
    graph = two_layers()
    plan = graph.cut(2, "", "loss")
    assert graph.segments(plan) == {"F0@0": "h", "F1@1": "y loss"}
    assert graph.edges(plan) == ["h: 0 to 1"]


def test_a_tensor_is_sent_once_whatever_its_users() -> None:
    graph = Written()
    graph.add("a", home=0)
    for name in ("b", "c", "d"):
        graph.add(name, "a", home=1)
    graph.add("e", "b", "c", "a", home=2)
    plan = graph.cut(3, "", "d a", "e a")
    assert graph.edges(plan) == ["a: 0 to 1", "a: 0 to 2", "b: 1 to 2", "c: 1 to 2"]
    assert [plan.segment_of[graph.port("a"), rank].level for rank in (1, 2)] == [1, 1]


def test_a_rank_gets_what_it_wants_and_does_not_use() -> None:
    graph = Written()
    graph.add("a", home=0)
    plan = graph.cut(2, "", "a")
    (received,) = (each for key, each in plan.segments.items() if key.rank == 1)
    assert received.nodes == []
    assert received.inputs == received.outputs == [graph.port("a")]


def test_a_rank_without_anything_has_a_segment_all_the_same() -> None:
    graph = Written()
    graph.add("x", role=ARGUMENT)
    graph.add("a", "x", home=2)
    plan = graph.cut(3, "x", "", "a")
    assert graph.segments(plan) == {"F0@0": "", "F0@1": "", "F0@2": "a"}
    assert plan.edges == []


def test_there_and_back_again_makes_segments_of_their_own() -> None:
    graph = Written()
    for number, home in enumerate((0, 1, 0, 1)):
        graph.add(f"n{number}", *([f"n{number - 1}"] if number else []), home=home)
    plan = graph.cut(2, "n3", "")
    assert graph.segments(plan) == {
        "F0@0": "n0",
        "F1@1": "n1",
        "F2@0": "n2",
        "F3@1": "n3",
        "F4@0": "",
    }


def test_what_changes_a_state_runs_where_it_is_and_brings_what_it_needs() -> None:
    graph = Written()
    graph.add("a", home=0)
    graph.add("assign", "a", home=1, changes=["mean"])
    graph.add("unused", "a", home=1, reads=["mean"])
    plan = graph.cut(2)
    assert graph.segments(plan) == {"F0@0": "a", "F1@1": "assign"}


def test_what_has_effects_outside_of_the_model_runs_on_every_rank() -> None:
    graph = Written()
    graph.add("a", home=1)
    graph.add("print", "a", changes=[EFFECTS])
    graph.add("print again", "a", changes=[EFFECTS])
    plan = graph.cut(2)
    assert graph.segments(plan) == {"F0@1": "a print print again", "F1@0": "print print again"}
    assert all(not each.follows for each in plan.segments.values())


def test_a_state_is_touched_in_the_order_of_the_program() -> None:
    graph = Written()
    graph.add("late", home=1)
    graph.add("first read", home=0, reads=["s"])
    graph.add("change", "late", home=0, changes=["s"])
    graph.add("second read", home=0, reads=["s"])
    graph.add("other read", home=0, reads=["t"])
    ports = [graph.port(each) for each in ("first read", "second read", "other read")]
    plan = CUTTING.cut(graph.nodes, 2, [ports, []])
    key_of = {name: plan.segment_of[port, 0] for name, port in zip("fso", ports, strict=True)}
    assert key_of["s"].level == 1, "not before the change, which waits for another rank"
    assert key_of["f"].level == key_of["o"].level == 0
    one, other = (plan.segments[key_of[each]] for each in "fs")
    assert one.follows == {other.key}, "the next microbatch reads what this one has changed"
    assert other.follows == {one.key}


def test_a_state_that_nothing_changes_orders_nothing() -> None:
    graph = Written()
    graph.add("late", home=1)
    graph.add("one", home=0, reads=["s"])
    graph.add("other", "late", home=0, reads=["s"])
    plan = graph.cut(2, "one other", "")
    assert all(not each.follows for each in plan.segments.values())


@pytest.mark.parametrize("changes_forward", [True, False])
def test_a_state_of_both_phases_is_refused_if_it_changes(changes_forward: bool) -> None:
    graph = Written()
    touch = {"changes" if changes_forward else "reads": ["s"]}
    graph.add("forward", home=0, **touch)
    graph.gradient("backward", "forward", home=0, changes=["s"])
    with pytest.raises(CUTTING.StateCrossing) as raised:
        graph.cut(1, "forward")
    assert raised.value.state == "s"
    assert {raised.value.one, raised.value.other} == {0, 1}


def test_shapes_are_taken_before_rather_than_kept_with_what_has_them() -> None:
    graph = Written()
    graph.add("large", home=0)
    graph.add("y", "large", home=1)
    graph.gradient("shape", "large", home=0, takes_shape=True)
    graph.gradient("dy", "y", home=1)
    graph.gradient("dlarge", "dy", "shape", home=0)
    plan = graph.cut(2, "dlarge", "")
    assert graph.segments(plan)["F0@0"] == "large shape"
    (backward,) = (each for key, each in plan.segments.items() if str(key) == "B2@0")
    assert set(backward.inputs) == {graph.port("shape"), graph.port("dy")}


def test_what_is_needed_later_runs_later() -> None:
    graph = Written()
    graph.add("labels", role=ARGUMENT)
    graph.add("converted", "labels")
    graph.add("y", home=1)
    graph.add("loss", "y", "converted")
    plan = graph.cut(2, "loss", "")
    assert graph.segments(plan) == {"F0@1": "y", "F1@0": "converted loss"}


def test_what_is_needed_later_runs_no_later_than_a_gradient_needs_it() -> None:
    graph = Written()
    graph.add("a")
    graph.add("n0", home=1)
    graph.add("n1", "n0", home=0)
    graph.add("n2", "n1", home=1)
    graph.add("late", "n2", "a", home=0)
    graph.gradient("early", "a", home=0)
    plan = graph.cut(2, "late early", "")
    assert graph.segments(plan)["F0@0"] == "a"
    assert graph.segments(plan)["F3@0"] == "late"


def test_the_forward_of_a_loop_remembers_what_its_gradient_needs() -> None:
    """Gradients of loops change the loop, which is older: numbers do not tell the order."""
    nodes = [
        Node(name="loop", inputs=(Port(1),), home=0),
        Node(name="list", home=0, is_gradient=True),
        Node(name="gradient", inputs=(Port(0),), home=0, is_gradient=True),
    ]
    plan = CUTTING.cut(nodes, 1, [[Port(0), Port(2)]])
    by_key = {str(key): segment.nodes for key, segment in plan.segments.items()}
    assert by_key == {"F0@0": [1, 0], "B0@0": [2]}


# --- random graphs -----------------------------------------------------------------------------

_MICROBATCHES = 3


def _random_nodes(chance: random.Random, ranks: int) -> list[Any]:
    """In an order in which they can run; some touch a state, each of one rank or of all."""
    count = chance.randint(2, 24)
    backward_from = chance.choice([count, count // 2])
    nodes: list[Any] = []
    for number in range(count):
        home = chance.randrange(-1, ranks)
        inputs = tuple(
            Port(chance.randrange(number)) for _ in range(chance.randint(0, 3)) if number
        )
        role = Role.PLAIN
        needs_clones = all(nodes[port.node].role.is_cloned for port in inputs)
        if home == EVERYWHERE and needs_clones and chance.random() < 0.3:
            role = chance.choice([FREE, ARGUMENT]) if not inputs else FREE
        touched = []
        if role is Role.PLAIN and chance.random() < 0.4:
            touched = [(home, number >= backward_from, chance.randrange(2))]
        is_changing = chance.random() < 0.5
        nodes.append(
            Node(
                name=f"n{number}",
                inputs=inputs,
                home=home,
                role=role,
                is_gradient=number >= backward_from and chance.random() < 0.8,
                reads=frozenset(() if is_changing else touched),
                changes=frozenset(touched if is_changing else ()),
                must_run=bool(touched) and is_changing,
                can_run_again=not touched and number % 4 != 3,
            )
        )
    return nodes


class _States(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        return hash(key)


def _value(node: Any, inputs: Sequence[int], microbatch: int, states: _States) -> int:
    """Of a node; changes its states."""
    mine = [states[each] for each in sorted(node.reads | node.changes)]
    of_microbatch = microbatch if node.role is ARGUMENT else None
    value = hash((node.name, tuple(inputs), tuple(mine), of_microbatch))
    for state in node.changes:
        states[state] = value
    return value


def _whole(nodes: Sequence[Any]) -> tuple[list[dict[int, int]], _States]:
    """Values by microbatch and node, microbatch by microbatch; and the states then."""
    states = _States()
    rows: list[dict[int, int]] = []
    for microbatch in range(_MICROBATCHES):
        row: dict[int, int] = {}
        for number, node in enumerate(nodes):
            inputs = [row[port.node] for port in node.inputs]
            row[number] = _value(node, inputs, microbatch, states)
        rows.append(row)
    return rows, states


class _Ranks:
    """Runs a plan on ranks that have only what they have made or got."""

    def __init__(self, nodes: Sequence[Any], plan: Any, ranks: int) -> None:
        self._nodes = nodes
        self._plan = plan
        self.states = [_States() for _ in range(ranks)]
        # By rank and microbatch: what is there.
        self.there: list[list[dict[Any, int]]] = [
            [{} for _ in range(_MICROBATCHES)] for _ in range(ranks)
        ]

    def call(self, key: Any, microbatch: int) -> None:
        segment = self._plan.segments[key]
        there = self.there[key.rank][microbatch]
        again = segment.again or CUTTING.Again([], [], [])
        has = {port: there[port] for port in again.inputs}
        for number in again.nodes:
            has[Port(number)] = self._run(number, has, microbatch, key.rank)
        has = {port: has[port] for port in again.outputs}
        has |= {port: there[port] for port in segment.inputs if port not in has}
        for number in segment.nodes:
            has[Port(number)] = self._run(number, has, microbatch, key.rank)
        for port in segment.outputs:
            there[port] = self._of(port, has, microbatch, key.rank)
        for edge in self._plan.edges:
            if edge.source == key.rank and edge.port.node in segment.nodes:
                self.there[edge.destination][microbatch][edge.port] = there[edge.port]

    def _run(self, number: int, has: dict[Any, int], microbatch: int, rank: int) -> int:
        node = self._nodes[number]
        inputs = [self._of(port, has, microbatch, rank) for port in node.inputs]
        return _value(node, inputs, microbatch, self.states[rank])

    def _of(self, port: Any, has: dict[Any, int], microbatch: int, rank: int) -> int:
        if self._nodes[port.node].role.is_cloned:
            return self._run(port.node, has, microbatch, rank)
        return has[port]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_random_graphs_cut_give_what_they_give_whole(schedule: str) -> None:
    num_crossing = num_again = 0
    for seed in range(300):
        chance = random.Random(seed)
        ranks = chance.randint(1, 4)
        nodes = _random_nodes(chance, ranks)
        wanted = [
            [Port(chance.randrange(len(nodes))) for _ in range(chance.randint(0, 3))]
            for _ in range(ranks)
        ]
        try:
            plan = CUTTING.cut(nodes, ranks, wanted, recomputes=bool(seed % 2))
        except CUTTING.StateCrossing:
            num_crossing += 1
            continue
        num_again += any(segment.again for segment in plan.segments.values())
        whole, states = _whole(nodes)
        mine = _run_in_order(nodes, plan, ranks, schedule, chance)
        for rank, ports in enumerate(wanted):
            for port in ports:
                if nodes[port.node].role.is_cloned:
                    continue
                found = [row[port] for row in mine.there[rank]]
                assert found == [row[port.node] for row in whole], (seed, rank, port)
        for rank, found_states in enumerate(mine.states):
            for state, value in found_states.items():
                assert value == states[state], (seed, rank, state)
        changed = {state for node in nodes for state in node.changes}
        for state in changed:
            owners = range(ranks) if state[0] == EVERYWHERE else [state[0]]
            assert all(state in mine.states[rank] for rank in owners), (seed, state)
    assert num_crossing < 60, "most graphs are cut"
    assert num_again > 30, "many run something again"


def _run_in_order(
    nodes: Sequence[Any], plan: Any, ranks: int, schedule: str, chance: random.Random
) -> _Ranks:
    """Each rank runs its list; the ranks are as fast as chance has it."""
    segments = [
        ordering.Segment(
            str(key),
            key.rank,
            key.phase,
            tuple(map(str, sorted(segment.waits_for))),
            seconds=chance.random(),
            follows=tuple(map(str, sorted(segment.follows))),
        )
        for key, segment in plan.segments.items()
    ]
    keys = {str(key): key for key in plan.segments}
    found = ordering.order(schedule_named(schedule, _MICROBATCHES, 2), segments, ranks)
    left = [list(reversed(found.of_rank(rank))) for rank in range(ranks)]
    mine = _Ranks(nodes, plan, ranks)
    while any(left):
        ready = []
        for rank, turns in enumerate(left):
            if turns:
                inputs = plan.segments[keys[turns[-1].segment]].inputs
                if all(port in mine.there[rank][turns[-1].microbatch] for port in inputs):
                    ready.append(rank)
        assert ready, "the ranks wait for each other"
        turn = left[chance.choice(ready)].pop()
        mine.call(keys[turn.segment], turn.microbatch)
    return mine
