# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a run measures, in which order and for how long.

Only turns of one round are compared. So a round should be short, and hold no more than what is to
be compared: all libraries for the tables, and what one target names for the targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cases import MIB, REDUCING, Case, Column
from targets import TARGETS

# Rounds and budget of a turn for the targets, by the size up to which they hold. Turns of small
# messages are long beside the time in which the ranks wake up; large ones need few calls, and short
# rounds, which one core state outlasts more often.
_TARGET_EXTENTS = ((MIB - 1, 40, 60.0), (MIB, 40, 25.0), (25 * MIB, 25, 25.0))
_TARGET_EXTENT_ABOVE = (15, 25.0)


@dataclass(frozen=True)
class Block:
    """Columns that are prepared together and take turns, with the buffers of all at hand.

    Attributes:
        case: the case that gives the block its name; a column may have another one.
        sets: in turn, each of these sets of columns has a round.
        rounds: how many rounds each set has.
        turn_ms: time budget of one turn.
    """

    case: Case
    sets: tuple[tuple[Column, ...], ...]
    rounds: int
    turn_ms: float

    @property
    def columns(self) -> list[Column]:
        """All columns, each once."""
        return list(dict.fromkeys(column for columns in self.sets for column in columns))

    def only(self, libraries: Collection[str]) -> Block:
        """The same without the columns of other libraries."""
        kept = (tuple(column for column in s if column.library in libraries) for s in self.sets)
        return Block(self.case, tuple(filter(None, kept)), self.rounds, self.turn_ms)


def table_blocks(
    cases: Sequence[Case], libraries: Sequence[str], rounds: int, turn_ms: float
) -> list[Block]:
    """All libraries in every round of every case."""
    return [
        Block(case, (tuple(Column(name, case) for name in libraries),), rounds, turn_ms)
        for case in cases
    ]


def table_cases(
    collectives: Sequence[str],
    dtypes: Sequence[str],
    sizes: Mapping[str, Sequence[int]],
    ranks: int,
) -> Iterator[Case]:
    """Cases with this number of ranks; ``sizes`` are in bytes, for each of ``dtypes``."""
    for collective in collectives:
        if collective == "send_recv" and ranks < 2:
            continue
        for dtype in dtypes:
            if dtype != "f32" and collective not in REDUCING:
                continue  # moving bytes does not depend on their type
            wanted = [4] if collective == "barrier" else sizes[dtype]
            yield from (Case(collective, dtype, ranks, size) for size in wanted)


def target_blocks(
    ranks: int, libraries: Collection[str], rounds: int | None, turn_ms: float | None
) -> list[Block]:
    """What the targets with this number of ranks need: a round is what one of them compares.

    Targets that name another library than ``libraries`` are left out. ``rounds`` and ``turn_ms``
    depend on the size where they are None.
    """
    by_case: dict[Case, dict[tuple[Column, ...], None]] = {}
    for target in TARGETS:
        is_wanted = all(column.library in libraries for column in target.columns)
        if is_wanted and target.case.ranks == ranks:
            # Some targets differ in nothing but the core state in which they hold.
            by_case.setdefault(target.case, {})[target.columns] = None
    blocks = []
    for case, sets in by_case.items():
        usual_rounds, usual_turn_ms = _target_extent(case.size_bytes)
        blocks.append(Block(case, tuple(sets), rounds or usual_rounds, turn_ms or usual_turn_ms))
    return blocks


def _target_extent(size_bytes: int) -> tuple[int, float]:
    for limit, rounds, turn_ms in _TARGET_EXTENTS:
        if size_bytes <= limit:
            return rounds, turn_ms
    return _TARGET_EXTENT_ABOVE
