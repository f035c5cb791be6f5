# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which part of the model, and who talks to whom: pure arithmetic on ranks.

The world is a mesh with three axes: pipeline (P), tensor (T) and reduced data (D). A placement
strategy is the order of the axes: read from right to left, the right-most one varies fastest over
consecutive world ranks, so neighbours on a host differ in it first.

    size = pipeline x tensor x reduced data
    PP, TP, RDP group   the ranks that differ from this one along one axis only
    MP group            along P and T: one replica of the model
    DP group            along T and D: the ranks that hold the same pipeline partition

Source: modelparallel specification, section 2.
"""

import dataclasses
import enum
import itertools
import math

from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["PLACEMENT_STRATEGIES", "Coordinates", "GroupKind", "Topology"]

_ALIASES = {"cluster": "DPT", "spread": "TPD"}
_PERMUTATIONS = tuple("".join(letters) for letters in itertools.permutations("DPT"))

PLACEMENT_STRATEGIES = (*_ALIASES, *_PERMUTATIONS)


class GroupKind(enum.Enum):
    """A kind of group; the value is the axes along which its members differ."""

    WORLD = "DPT"
    MP = "PT"
    DP = "TD"
    PP = "P"
    TP = "T"
    RDP = "D"


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Where a rank is in the mesh: its index along each axis, from 0."""

    pp: int
    tp: int
    rdp: int

    def along(self, axis: str) -> int:
        """The index along the axis with this letter: "P", "T" or "D"."""
        return {"P": self.pp, "T": self.tp, "D": self.rdp}[axis]


@dataclasses.dataclass(frozen=True)
class Topology:
    """The mesh of all ranks.

    Attributes:
        size: the world size.
        pipeline_degree: partitions of the pipeline.
        tensor_degree: ranks that share a distributed module.
        strategy: one of `PLACEMENT_STRATEGIES`.

    Raises:
        ConfigError: the degrees do not divide the world size, or there is no such strategy.
    """

    size: int
    pipeline_degree: int = 1
    tensor_degree: int = 1
    strategy: str = "cluster"

    def __post_init__(self) -> None:
        if self.strategy not in PLACEMENT_STRATEGIES:
            raise ConfigError(
                f"placement_strategy is {self.strategy!r}; must be a value in: "
                f"[{', '.join(PLACEMENT_STRATEGIES)}]."
            )
        ranks = self.pipeline_degree * self.tensor_degree
        if self.size % ranks != 0:
            raise ConfigError(
                f"{self.size} processes cannot hold pipeline_parallel_degree "
                f"{self.pipeline_degree} x tensor_parallel_degree {self.tensor_degree}; expected a "
                f"multiple of {ranks} processes. Start as many, or change the degrees."
            )

    @property
    def reduced_data_degree(self) -> int:
        """Ranks with identical parameters."""
        return self.size // (self.pipeline_degree * self.tensor_degree)

    def coordinates(self, rank: int) -> Coordinates:
        """Where world rank `rank` is."""
        index = {}
        for axis in reversed(self._axes):
            rank, index[axis] = divmod(rank, self._degree(axis))
        return Coordinates(pp=index["P"], tp=index["T"], rdp=index["D"])

    def rank_at(self, coordinates: Coordinates) -> int:
        """The world rank that is there."""
        rank = 0
        for axis in self._axes:
            rank = rank * self._degree(axis) + coordinates.along(axis)
        return rank

    def members(self, kind: GroupKind, rank: int) -> tuple[int, ...]:
        """The group of a kind that world rank `rank` is in: world ranks, ascending."""
        own = self.coordinates(rank)
        pp, tp, rdp = (
            range(self._degree(axis)) if axis in kind.value else (own.along(axis),)
            for axis in "PTD"
        )
        found = (self.rank_at(Coordinates(*at)) for at in itertools.product(pp, tp, rdp))
        return tuple(sorted(found))

    def groups(self, kind: GroupKind) -> tuple[tuple[int, ...], ...]:
        """All groups of a kind, by their first rank."""
        seen: set[int] = set()
        found = []
        for rank in range(self.size):
            if rank not in seen:
                found.append(self.members(kind, rank))
                seen.update(found[-1])
        return tuple(found)

    def size_of(self, kind: GroupKind) -> int:
        """Members of a group of this kind."""
        return math.prod(self._degree(axis) for axis in kind.value)

    def rank_in(self, kind: GroupKind, rank: int) -> int:
        """The position of world rank `rank` in its group of this kind.

        Along one axis that is the index along it, as members are ascending in world ranks.
        """
        return self.members(kind, rank).index(rank)

    @property
    def _axes(self) -> str:
        return _ALIASES.get(self.strategy, self.strategy)

    def _degree(self, axis: str) -> int:
        return {
            "P": self.pipeline_degree,
            "T": self.tensor_degree,
            "D": self.reduced_data_degree,
        }[axis]
