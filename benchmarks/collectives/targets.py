# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the project wants to reach on one host, and whether a run reached it.

A target bounds the time of one of our columns by the time of a peer, both from turns of one round
and one core state. Where several peers are named, the fastest of the round counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import KIB, MIB, Case
from core_state import COMPARABLE_TAGS

MPIS = ("openmpi", "mpich", "intelmpi", "openmpi-yield", "intelmpi-yield")
STAGED_FLOORS = ("floor-staged", "floor-staged_rs")
SMALL_SIZES = (4, 64, 512, 4 * KIB)
TORCH_OVERHEAD_US = 5.0  # what a call of torch.distributed costs before it reaches a backend
_APART = ("split", "far")

Record = dict[str, Any]
Turn = dict[str, Any]
CaseKey = tuple[str, str, int, int]  # collective, dtype, ranks, size in bytes


@dataclass(frozen=True)
class Target:
    """``own`` takes at most ``factor`` times the time of the fastest of ``peers``, plus some µs.

    Attributes:
        case: what is measured.
        own: our column.
        peers: their columns.
        factor: of the peers' time; 1 / 12 is "12 times as fast".
        extra_us: added to the bound, for what a peer's figure does not contain.
        peer_dtype: the peers' type of elements, where it is not the case's.
        tags: the core states in which the target holds.
    """

    case: Case
    own: str
    peers: tuple[str, ...]
    factor: float
    extra_us: float = 0.0
    peer_dtype: str | None = None
    tags: tuple[str, ...] = COMPARABLE_TAGS

    @property
    def is_speedup(self) -> bool:
        """Whether it is read as "so many times as fast", else as "within so many times"."""
        return self.factor < 1

    @property
    def peer_case(self) -> Case:
        """The case in which the peers are measured."""
        case = self.case
        if self.peer_dtype is None:
            return case
        return Case(case.collective, self.peer_dtype, case.ranks, case.size_bytes)

    def bound_us(self, peer_us: float) -> float:
        """The time that ``own`` may take."""
        return self.factor * peer_us + self.extra_us

    def ratio(self, own_us: float, peer_us: float) -> float:
        """What is compared with the factor, or with its inverse for a speedup."""
        if self.is_speedup:
            return peer_us / max(own_us - self.extra_us, 1e-3)
        return max(own_us - self.extra_us, 0.0) / peer_us


@dataclass(frozen=True)
class Outcome:
    """A target in one core state of a run; times are of the paired turns."""

    target: Target
    tag: str
    pairs: int
    own_us: tuple[float, float]  # best, median
    peer_us: tuple[float, float]
    ratios: tuple[float, float]
    is_reached: tuple[bool, bool]


def _at_least(times: float, case: Case, peer: str, **options: Any) -> Target:
    return Target(case, options.pop("own", "smddp-torch"), (peer,), 1 / times, **options)


def _all_reduce(ranks: int, size_bytes: int, dtype: str = "f32") -> Case:
    return Case("all_reduce", dtype, ranks, size_bytes)


def _large_targets() -> Iterator[Target]:
    for size in (MIB, 25 * MIB, 100 * MIB):
        case = _all_reduce(2, size)
        yield Target(case, "smddp-torch", ("floor-ideal",), 1.2, TORCH_OVERHEAD_US)
        yield Target(case, "smddp-torch-foreign", STAGED_FLOORS, 1.2)
    case = _all_reduce(2, 25 * MIB)
    yield _at_least(12, case, "gloo", tags=("smt",))
    yield _at_least(2.5, case, "openmpi", tags=("smt",))
    yield _at_least(25, case, "gloo", tags=_APART)
    yield _at_least(4, case, "openmpi", tags=_APART)
    case = _all_reduce(2, 100 * MIB)
    yield _at_least(12, case, "gloo")
    yield _at_least(6, case, "openmpi")
    yield _at_least(2, case, "deepspeed")
    case = _all_reduce(4, 25 * MIB)
    yield _at_least(12, case, "gloo")
    yield _at_least(3, case, "openmpi")


def _small_targets() -> Iterator[Target]:
    for size in SMALL_SIZES:
        case = _all_reduce(2, size)
        yield Target(case, "smddp-direct", ("openmpi",), 1.0)
        yield Target(case, "smddp-torch", ("openmpi",), 1.0, TORCH_OVERHEAD_US)
    for ranks in (4, 8):
        for size in SMALL_SIZES:
            yield Target(_all_reduce(ranks, size), "smddp-direct", MPIS, 1.2)


def _other_targets() -> Iterator[Target]:
    for name in ("reduce_scatter", "all_gather", "broadcast", "all_to_all"):
        for ranks in (2, 4):
            yield _at_least(5, Case(name, "f32", ranks, 25 * MIB), "gloo")
    for dtype in ("f16", "bf16"):
        case = _all_reduce(2, 25 * MIB, dtype)
        yield Target(case, "smddp-torch", ("smddp-torch",), 1.0, peer_dtype="f32")
        yield _at_least(8, case, "gloo", peer_dtype="f16")


TARGETS: Sequence[Target] = (*_large_targets(), *_small_targets(), *_other_targets())


def cases(ranks: int) -> list[Case]:
    """The cases with this number of ranks that the targets need, in the order of the targets."""
    found = [case for target in TARGETS for case in (target.case, target.peer_case)]
    return [case for case in dict.fromkeys(found) if case.ranks == ranks]


def evaluate(target: Target, rows: Mapping[CaseKey, Mapping[str, Record]]) -> list[Outcome]:
    """What a run says about ``target``, for each core state with pairs of turns.

    ``rows`` has the records of the run by case, then by column. Types of elements are cases of
    their own: their turns are paired by round, and took place a while after each other.
    """
    own = rows.get(_key(target.case), {}).get(target.own)
    found = rows.get(_key(target.peer_case), {})
    peers = [found[name] for name in target.peers if name in found]
    if own is None or not peers:
        return []
    outcomes = []
    for tag, pairs in _pairs(own, peers).items():
        if tag not in target.tags:
            continue
        turns, others = zip(*pairs, strict=True)
        best = (min(t["best_us"] for t in turns), min(t["best_us"] for t in others))
        middle = (median(t["median_us"] for t in turns), median(t["median_us"] for t in others))
        ratios = (
            target.ratio(*best),
            median(target.ratio(turn["median_us"], peer["median_us"]) for turn, peer in pairs),
        )
        limit = 1 / target.factor if target.is_speedup else target.factor
        reached = [ratio >= limit if target.is_speedup else ratio <= limit for ratio in ratios]
        outcomes.append(
            Outcome(
                target,
                tag,
                len(pairs),
                (best[0], middle[0]),
                (best[1], middle[1]),
                ratios,
                (reached[0], reached[1]),
            )
        )
    return outcomes


def _key(case: Case) -> CaseKey:
    return (case.collective, case.dtype, case.ranks, case.size_bytes)


def _pairs(own: Record, peers: Sequence[Record]) -> dict[str, list[tuple[Turn, Turn]]]:
    """Our turns with the least times of the peers' in the same round, by core state.

    A round counts if all of them took place in one state; else the fastest peer of another state
    would be missing.
    """
    found: dict[str, list[tuple[Turn, Turn]]] = {}
    for turn in own["turns"]:
        others = [t for peer in peers for t in peer["turns"] if t["round"] == turn["round"]]
        is_paired = others and all(other["tag"] == turn["tag"] for other in others)
        if is_paired and turn["tag"] in COMPARABLE_TAGS:
            fastest = {name: min(t[name] for t in others) for name in ("best_us", "median_us")}
            found.setdefault(turn["tag"], []).append((turn, fastest))
    return found
