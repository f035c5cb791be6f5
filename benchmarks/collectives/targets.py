# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the project wants to reach on one host, and whether a run reached it.

A target bounds the time of one of our columns by the time of one peer, both from turns of one round
and one core state. "As fast as the best MPI" is a target for each MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import KIB, MIB, Case, Column
from core_state import COMPARABLE_TAGS
from figures import paired_turns

MPIS = ("openmpi", "mpich", "intelmpi", "openmpi-yield", "intelmpi-yield")
STAGED_FLOORS = ("floor-staged", "floor-staged_rs")
SMALL_SIZES = (4, 64, 512, 4 * KIB)
GRANTED_US = 5.0  # beside the floor, for the way through torch
_APART = ("split", "far")

Record = dict[str, Any]
CaseKey = tuple[str, str, int, int]  # collective, dtype, ranks, size in bytes


@dataclass(frozen=True)
class Target:
    """``own`` takes at most ``factor`` times the time of ``peer``, plus what is granted.

    Attributes:
        case: what is measured.
        own: our column.
        peer: the column it is compared with.
        factor: of the peer's time; 1 / 12 is "12 times as fast".
        granted_us: added to the bound, for what the peer's figure does not contain.
        granted: a column of the same case whose time is added to the bound as well.
        peer_dtype: the peer's type of elements, where it is not the case's.
        tags: the core states in which the target holds.
    """

    case: Case
    own: str
    peer: str
    factor: float
    granted_us: float = 0.0
    granted: str | None = None
    peer_dtype: str | None = None
    tags: tuple[str, ...] = COMPARABLE_TAGS

    @property
    def is_speedup(self) -> bool:
        """Whether it is read as "so many times as fast", else as "within so many times"."""
        return self.factor < 1

    @property
    def columns(self) -> tuple[Column, ...]:
        """What has to be measured in one round: ours, the peer's, and what is granted."""
        case = self.case
        dtype = self.peer_dtype or case.dtype
        peer_case = Case(case.collective, dtype, case.ranks, case.size_bytes)
        granted = () if self.granted is None else (Column(self.granted, case),)
        return (Column(self.own, case), Column(self.peer, peer_case), *granted)

    def ratio(self, own_us: float, peer_us: float, granted_us: float) -> float:
        """Own time / peer's time, or the inverse for a speedup; compared with ``limit``.

        What is granted counts as time of the peer, divided by the factor: the ratio meets the limit
        exactly where ``own_us`` is ``factor * peer_us + granted_us``.
        """
        allowed_us = peer_us + granted_us / self.factor
        return allowed_us / own_us if self.is_speedup else own_us / allowed_us

    @property
    def limit(self) -> float:
        """The ratio that is just good enough."""
        return 1 / self.factor if self.is_speedup else self.factor

    def is_reached_by(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio >= self.limit if self.is_speedup else ratio <= self.limit


@dataclass(frozen=True)
class Outcome:
    """A target in one core state of a run. Times are of the paired turns; all are best, median."""

    target: Target
    tag: str
    pairs: int
    own_us: tuple[float, float]
    peer_us: tuple[float, float]
    granted_us: tuple[float, float]  # of the column that is granted; 0 without one
    ratios: tuple[float, float]

    @property
    def is_reached(self) -> tuple[bool, bool]:
        """For the best times, and for the medians."""
        best, middle = self.ratios
        return self.target.is_reached_by(best), self.target.is_reached_by(middle)


def _at_least(times: float, case: Case, peer: str, **options: Any) -> Target:
    return Target(case, "smddp-torch", peer, 1 / times, **options)


def _all_reduce(ranks: int, size_bytes: int, dtype: str = "f32") -> Case:
    return Case("all_reduce", dtype, ranks, size_bytes)


def _floor_targets() -> Iterator[Target]:
    for size in (MIB, 25 * MIB, 100 * MIB):
        case = _all_reduce(2, size)
        yield Target(case, "smddp-torch", "floor-ideal", 1.2, GRANTED_US)
        for floor in STAGED_FLOORS:
            yield Target(case, "smddp-torch-plain", floor, 1.2)
    # Of 1 MiB a good part is torch's own way to the group, so once more beside what that takes.
    case = _all_reduce(2, MIB)
    yield Target(case, "smddp-torch", "floor-ideal", 1.2, granted="torch-noop")
    for floor in STAGED_FLOORS:
        yield Target(case, "smddp-torch-plain", floor, 1.2, granted="torch-noop")


def _large_targets() -> Iterator[Target]:
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
        yield Target(case, "smddp-direct", "openmpi", 1.0)
        yield Target(case, "smddp-torch", "openmpi", 1.0, granted="torch-noop")


def _small_targets_of_many_ranks() -> Iterator[Target]:
    for ranks in (4, 8):
        for size in SMALL_SIZES:
            for peer in MPIS:
                yield Target(_all_reduce(ranks, size), "smddp-direct", peer, 1.2)


def _other_targets() -> Iterator[Target]:
    for name in ("reduce_scatter", "all_gather", "broadcast", "all_to_all"):
        for ranks in (2, 4):
            yield _at_least(5, Case(name, "f32", ranks, 25 * MIB), "gloo")


def _half_precision_targets() -> Iterator[Target]:
    for dtype in ("f16", "bf16"):
        case = _all_reduce(2, 25 * MIB, dtype)
        yield Target(case, "smddp-torch", "smddp-torch", 1.0, peer_dtype="f32")
        yield _at_least(8, case, "gloo", peer_dtype="f16")


FAMILIES: Mapping[str, Sequence[Target]] = {
    "Large buffers, beside the memory's limit": tuple(_floor_targets()),
    "Large buffers, beside other libraries": tuple(_large_targets()),
    "Small messages, 2 ranks": tuple(_small_targets()),
    "Small messages, 4 and 8 ranks": tuple(_small_targets_of_many_ranks()),
    "Other collectives": tuple(_other_targets()),
    "Half precision": tuple(_half_precision_targets()),
}
TARGETS: Sequence[Target] = tuple(target for family in FAMILIES.values() for target in family)


def evaluate(target: Target, rows: Mapping[CaseKey, Mapping[str, Record]]) -> list[Outcome]:
    """What a run says about ``target``, for each core state with pairs of turns.

    ``rows`` has the records of the run by case, then by column.
    """
    records = [rows.get(key_of(case), {}).get(library) for library, case in target.columns]
    found = [record["turns"] for record in records if record is not None]
    if len(found) < len(records):
        return []
    return [
        _outcome(target, tag, rounds)
        for tag, rounds in paired_turns(*found).items()
        if tag in target.tags
    ]


def _outcome(target: Target, tag: str, rounds: Sequence[Sequence[Mapping[str, Any]]]) -> Outcome:
    columns = list(zip(*rounds, strict=True))
    best = [min(turn["best_us"] for turn in turns) for turns in columns]
    middle = [median(turn["median_us"] for turn in turns) for turns in columns]
    if target.granted is None:
        best, middle = [*best, 0.0], [*middle, 0.0]

    def ratio(own_us: float, peer_us: float, granted_us: float = 0.0) -> float:
        return target.ratio(own_us, peer_us, granted_us + target.granted_us)

    ratios = [ratio(*(turn["median_us"] for turn in turns)) for turns in rounds]
    own_us, peer_us, granted_us = zip(best, middle, strict=True)
    return Outcome(
        target,
        tag,
        len(rounds),
        own_us,
        peer_us,
        granted_us,
        (ratio(*best), median(ratios)),
    )


def key_of(case: Case) -> CaseKey:
    """What the records of a case are found by."""
    return (case.collective, case.dtype, case.ranks, case.size_bytes)
