# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Assignments: worked cases, what is always true, and a comparison with exhaustive search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.modelparallel.decide.partition import Assignment, Link, Module, assign
from smdistributed.modelparallel.exceptions import ConfigError

TIED = frozenset({"weight"})


def _chain(costs: Sequence[float], **root: float) -> Module:
    layers = tuple(
        Module(f"main/layer.{i}", memory_bytes=cost, seconds=cost, input_bytes=1, output_bytes=1)
        for i, cost in enumerate(costs)
    )
    return Module("main", children=layers, **root)


def _gpt(blocks: int, tied: bool) -> Module:
    """GPT-2's proportions: of memory an embedding is worth five blocks, of time the head three."""
    shares = TIED if tied else frozenset()
    embedding = Module("main/wte", 5.4, 0.01, 0.1, 1.0, shares=shares)
    head = Module("main/lm_head", 5.4, 3.2, 1.0, 60.0, shares=shares)
    layers = tuple(Module(f"main/h.{i}", 1.0, 1.0, 1.0, 1.0) for i in range(blocks))
    return Module("main", children=(embedding, *layers, head))


def _places(found: Assignment) -> list[int]:
    return list(found.partition_of.values())


@pytest.mark.parametrize(
    ("costs", "partitions", "expected"),
    [
        ([1, 1, 1, 1], 2, [0, 0, 1, 1]),
        ([1, 1, 1, 1], 4, [0, 1, 2, 3]),
        ([1] * 8, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        ([3, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([1, 1, 1, 3], 2, [0, 0, 0, 1]),
        ([1, 1, 1], 1, [0, 0, 0]),
    ],
)
def test_layers_one_after_the_other(
    costs: list[float], partitions: int, expected: list[int]
) -> None:
    found = assign(_chain(costs), partitions, memory_weight=0.8, link=Link(call_s=1e-3))
    assert _places(found) == [0, *expected]
    assert sum(found.loads) == pytest.approx(1.0, abs=0.02)


def test_what_the_root_does_itself_counts() -> None:
    found = assign(_chain([1, 1, 1], memory_bytes=3, seconds=3), 2, memory_weight=0.5)
    assert _places(found) == [0, 1, 1, 1]


def test_weights_decide_what_is_balanced() -> None:
    large = Module("main/large", memory_bytes=9, seconds=1)
    slow = tuple(Module(f"main/slow.{i}", memory_bytes=1, seconds=3) for i in range(3))
    root = Module("main", children=(large, *slow))
    by_memory, by_time = (assign(root, 2, memory_weight=weight) for weight in (1.0, 0.0))
    assert by_memory.partition_of["main/large"] not in {
        by_memory.partition_of[module.name] for module in slow
    }
    assert by_time.largest == pytest.approx(0.6)


def test_modules_that_share_a_parameter_stay_together() -> None:
    for partitions in (2, 4):
        found = assign(_gpt(12, tied=True), partitions, memory_weight=0.8)
        assert found.partition_of["main/wte"] == found.partition_of["main/lm_head"]
        assert "it shares parameters with main/lm_head" in found.reasons["main/wte"]


def test_modules_without_parameters_run_where_their_parent_does() -> None:
    block = Module(
        "main/block",
        1.0,
        1.0,
        children=(
            Module("main/block/relu", seconds=0.5, has_parameters=False),
            Module("main/block/linear", 1.0, 1.0),
        ),
    )
    relu = Module("main/relu", seconds=5.0, has_parameters=False)
    found = assign(Module("main", children=(block, relu)), 3, memory_weight=0.5)
    assert found.partition_of["main/relu"] == 0
    assert found.partition_of["main/block/relu"] == found.partition_of["main/block"]


def test_containers_are_opened_where_that_helps() -> None:
    inner = tuple(Module(f"main/body/{i}", 1.0, 1.0) for i in range(8))
    body = Module("main/body", has_parameters=False, children=inner)
    found = assign(Module("main", children=(body,)), 4, memory_weight=0.5, link=Link(1e-3))
    assert found.largest < 0.26
    assert [found.partition_of[module.name] for module in inner] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_more_partitions_than_modules_leaves_some_empty() -> None:
    found = assign(_chain([1.0]), 4, memory_weight=0.5)
    assert len(found.loads) == 4
    assert sorted(found.loads) == [0, 0, 0, pytest.approx(1.0)]
    assert assign(Module("main"), 3, memory_weight=0.5).loads == (0.0, 0.0, 0.0)


def test_of_two_equal_cuts_the_one_with_fewer_bytes_is_taken() -> None:
    # Both cuts give 2 and 3; one of them is where the activations are wide.
    sizes = [1.0, 100.0, 1.0, 1.0, 1.0]
    layers = tuple(Module(f"main/{i}", 1.0, 1.0, 1.0, size) for i, size in enumerate(sizes))
    root = Module("main", children=layers)
    found = assign(root, 2, memory_weight=0.0, link=Link(bytes_per_s=1e4))
    assert found.crossing_bytes == 2.0
    assert _places(found) == [0, 0, 0, 0, 1, 1]


def test_a_message_that_costs_more_than_it_saves_is_not_sent() -> None:
    found = assign(_chain([1, 1]), 2, memory_weight=0.0, link=Link(call_s=10.0))
    assert set(_places(found)) == {0}


def test_every_decision_is_explained() -> None:
    found = assign(_gpt(4, tied=True), 2, memory_weight=0.8)
    assert set(found.reasons) == set(found.shares) == set(found.partition_of)
    assert found.reasons["main"] == "the root runs on partition 0"
    assert found.reasons["main/h.0"].startswith("in partition ")
    assert "the largest load would be" in found.reasons["main/h.0"]
    assert sum(share.memory for share in found.shares.values()) == pytest.approx(1)
    assert sum(share.time for share in found.shares.values()) == pytest.approx(1)


def test_bonds_are_told() -> None:
    """Of the root, of who has no parameters, of who shares; not with what is below."""
    attention = Module(
        "main/attention",
        1.0,
        1.0,
        shares=frozenset("w"),
        children=(Module("main/attention/out", 1.0, shares=frozenset("w")),),
    )
    drop = Module("main/drop", has_parameters=False)
    embedding = Module("main/embedding", 1.0, 1.0, shares=frozenset("e"))
    tied = tuple(Module(f"main/{name}", 1.0, 1.0, shares=frozenset("t")) for name in "abc")
    root = Module(
        "main", 1.0, 1.0, shares=frozenset("e"), children=(attention, drop, embedding, *tied)
    )
    reasons = assign(root, 1, memory_weight=0.5).reasons
    assert reasons["main"] == "the root runs on partition 0"
    assert reasons["main/attention"] == ""
    assert reasons["main/attention/out"] == "it shares parameters with main/attention"
    assert reasons["main/drop"].startswith("it goes with main, as what has no parameters")
    assert reasons["main/embedding"] == "it goes with the root; it shares parameters with main"
    assert reasons["main/b"] == "it shares parameters with main/a and 1 more"


def test_the_next_best_place_is_that_of_a_module_with_all_below_it() -> None:
    blocks = tuple(
        Module(
            f"main/{number}",
            children=tuple(Module(f"main/{number}/{part}", 1.0, 1.0) for part in range(2)),
        )
        for number in range(4)
    )
    found = assign(Module("main", children=blocks), 2, memory_weight=0.5)
    assert [found.partition_of[block.name] for block in blocks] == [0, 0, 1, 1]
    assert found.reasons["main/2"] == (
        "in partition 0 the largest load would be 75.0% instead of 50.0%"
    )
    assert "would be 62.5% instead" in found.reasons["main/2/0"]


def test_layers_that_cost_nothing_go_along() -> None:
    found = assign(_chain([0, 5, 0]), 4, memory_weight=0.8, link=Link(call_s=1e-3))
    assert found.largest == pytest.approx(1.0, abs=0.01)


def test_what_cannot_be_assigned_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 partitions; expected one or more"):
        assign(_chain([1.0]), 0, memory_weight=0.5)
    twice = Module("main", children=(Module("main/a"), Module("main/a")))
    with pytest.raises(ConfigError, match="'main/a' twice"):
        assign(twice, 2, memory_weight=0.5)


def test_deep_models_are_no_problem() -> None:
    module = Module("main/5000", 1.0, 1.0)
    for depth in reversed(range(5000)):
        module = Module(f"main/{depth}", 0.001, 0.001, children=(module,))
    assert assign(module, 2, memory_weight=0.5).largest < 1.0


# --- Exhaustive search ---


def _random_tree(chance: random.Random, nodes: int, free: float = 0.0) -> Module:
    parents = [chance.randrange(node) for node in range(1, nodes)]

    def build(node: int) -> Module:
        is_free = free > 0 and node > 0 and chance.random() < free
        return Module(
            f"m{node}",
            memory_bytes=0.0 if is_free else chance.expovariate(1),
            seconds=0.0 if is_free else chance.expovariate(1),
            input_bytes=chance.random(),
            output_bytes=chance.random(),
            has_parameters=chance.random() < 0.85,
            shares=TIED if chance.random() < 0.15 else frozenset(),
            children=tuple(
                build(child) for child, parent in enumerate(parents, 1) if parent == node
            ),
        )

    return build(0)


def _walk(module: Module, parent: Module | None = None) -> Iterator[tuple[Module, Module | None]]:
    yield module, parent
    for child in module.children:
        yield from _walk(child, module)


def _load(
    root: Module, places: dict[str, int], partitions: int, memory_weight: float, link: Link
) -> float:
    """The largest load of an assignment, from the definition and nothing else."""
    modules = [module for module, _ in _walk(root)]
    memory = sum(module.memory_bytes for module in modules)
    seconds = sum(module.seconds for module in modules)
    loads = [0.0] * partitions
    for module in modules:
        own = memory_weight * module.memory_bytes / memory
        loads[places[module.name]] += own + (1 - memory_weight) * module.seconds / seconds
        if not module.children:
            continue
        row = [module, *module.children, module]
        sizes = [row[1].input_bytes, *(each.output_bytes for each in module.children)]
        for (one, other), size in zip(itertools.pairwise(row), sizes, strict=True):
            ends = places[one.name], places[other.name]
            if ends[0] != ends[1]:
                for end in ends:
                    loads[end] += (1 - memory_weight) * link.seconds(size) / seconds
    return max(loads)


def _is_allowed(root: Module, places: dict[str, int]) -> bool:
    pairs = list(_walk(root))
    sharing = {places[module.name] for module, _ in pairs if module.shares}
    return (
        places[root.name] == 0
        and len(sharing) <= 1
        and all(
            module.has_parameters or parent is None or places[module.name] == places[parent.name]
            for module, parent in pairs
        )
    )


def _best_load(root: Module, partitions: int, memory_weight: float, link: Link) -> float:
    names = [module.name for module, _ in _walk(root)]
    tried = (
        dict(zip(names, places, strict=True))
        for places in itertools.product(range(partitions), repeat=len(names))
    )
    return min(
        _load(root, places, partitions, memory_weight, link)
        for places in tried
        if _is_allowed(root, places)
    )


@pytest.mark.parametrize("seed", range(200))
def test_small_trees_are_within_five_percent_of_the_best_there_is(seed: int) -> None:
    chance = random.Random(seed)
    partitions = chance.randint(2, 3)
    root = _random_tree(chance, chance.randint(2, 8 if partitions == 2 else 6))
    memory_weight = chance.choice([0.0, 0.2, 0.8, 1.0])
    link = Link(call_s=0.02 * chance.random(), bytes_per_s=chance.choice([5.0, 50.0, 1e9]))
    found = assign(root, partitions, memory_weight, link)
    assert _is_allowed(root, dict(found.partition_of))
    load = _load(root, dict(found.partition_of), partitions, memory_weight, link)
    assert found.largest == pytest.approx(load)
    assert load <= 1.05 * _best_load(root, partitions, memory_weight, link) + 1e-12


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("partitions", [2, 4])
def test_gpt_2_is_within_ten_percent_of_the_best_cut_of_its_blocks(
    partitions: int, is_tied: bool
) -> None:
    blocks = 12
    root = _gpt(blocks, is_tied)
    found = assign(root, partitions, memory_weight=0.8, link=Link(call_s=1e-3))
    # All ways to give the blocks to partitions matter only by how many each has, but for messages.
    best = min(
        _load(
            root,
            {"main": 0, "main/wte": at[0], "main/lm_head": at[1]}
            | {f"main/h.{i}": place for i, place in enumerate(_runs(counts))},
            partitions,
            0.8,
            Link(),
        )
        for counts in itertools.product(range(blocks + 1), repeat=partitions)
        if sum(counts) == blocks
        for at in itertools.product(range(partitions), repeat=2)
        if not is_tied or at[0] == at[1]
    )
    assert found.largest <= 1.1 * best


def _runs(counts: Sequence[int]) -> list[int]:
    return [place for place, count in enumerate(counts) for _ in range(count)]


@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 60),
    partitions=st.integers(1, 8),
    free=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_what_is_true_of_every_assignment(
    seed: int, nodes: int, partitions: int, free: float
) -> None:
    root = _random_tree(random.Random(seed), nodes, free)
    found = assign(root, partitions, memory_weight=0.8, link=Link(0.01, 10.0))
    assert found == assign(root, partitions, memory_weight=0.8, link=Link(0.01, 10.0))
    assert _is_allowed(root, dict(found.partition_of))
    assert all(0 <= place < partitions for place in found.partition_of.values())
    load = _load(root, dict(found.partition_of), partitions, 0.8, Link(0.01, 10.0))
    assert found.largest == pytest.approx(load)


@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 60),
    partitions=st.integers(1, 8),
    call_s=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_it_is_never_much_worse_than_all_in_one_partition(
    seed: int, nodes: int, partitions: int, call_s: float
) -> None:
    """Where messages cost more than they save; the norm that is minimised is nearly the largest."""
    root = _random_tree(random.Random(seed), nodes, 0.3)
    found = assign(root, partitions, memory_weight=0.0, link=Link(call_s, 10.0))
    assert sum(load**12 for load in found.loads) <= 1 + 1e-6
