# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a soak does, as data: all ranks derive the same calls from the seed and the round.

A round knows nothing of the rounds before it, so one that failed is repeated by its number alone.
Within a round two lanes work at the same time, each in a thread and in groups of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LANES = 2
SLOTS = 5  # buffers of a lane that are used again and again
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_uneven",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
)
# all_reduce is what training does.
_WEIGHTS = (12, 2, 3, 3, 3, 2, 2, 1, 1, 2, 1)
# What a slot's buffer can be passed to: the calls whose input is a whole buffer.
_ON_SLOTS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
_SLOT_WEIGHTS = (8, 2, 1, 1, 1)
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64", "uint8")
_FLOAT_OPS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
_INTEGER_OPS = ("SUM", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
# Divisible by every number of ranks up to 4, and by 8: a slot can be cut into a part for each.
_GRAIN = 24
# Exponents of 2 between which counts of elements lie, and how often.
_COUNT_RANGES = ((0.0, 6.0), (6.0, 12.0), (12.0, 18.0), (18.0, 19.5))
_COUNT_WEIGHTS = (30, 35, 30, 5)


@dataclass(frozen=True)
class Slot:
    """A buffer that lives for many calls.

    Attributes:
        dtype: one of `FLOATS` and `INTEGERS`.
        count: elements, a multiple of the number of ranks of any group.
        home: the group, by its number in the lane, from whose shared memory the buffer comes;
            None for an ordinary tensor, which moves there with SMDDP_ZERO_COPY=recurring.
    """

    dtype: str
    count: int
    home: int | None


@dataclass(frozen=True)
class Call:
    """One collective.

    Attributes:
        collective: one of `COLLECTIVES`.
        group: number of the group in the lane.
        dtype: type of the elements.
        count: elements of each rank's input; a whole number for each rank of the group where the
            input is cut into parts.
        op: name in `torch.distributed.ReduceOp`, for collectives that reduce.
        root: rank within the group.
        memory: `fresh`, `foreign` (memory of NumPy), `view` (part of a larger tensor) or `slot`.
        slot: number of the slot, for memory `slot`.
        seed: of the data.
    """

    collective: str
    group: int
    dtype: str
    count: int
    op: str
    root: int
    memory: str
    slot: int | None
    seed: int


@dataclass(frozen=True)
class Step:
    """Slots that are dropped and made anew, then calls that are under way at the same time."""

    renewed: tuple[tuple[int, Slot], ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class LanePlan:
    """What one lane does in one round: the ranks of its groups, then its steps."""

    groups: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]


def plan_lane(seed: int, number: int, lane: int, world_size: int, steps: int) -> LanePlan:
    """The plan of `lane` in round `number`: the same on every rank, and in every run."""
    chance = random.Random(f"{seed}/{number}/{lane}")
    groups = [tuple(range(world_size))]
    for _ in range(2):
        size = chance.randint(min(2, world_size), world_size)
        groups.append(tuple(sorted(chance.sample(range(world_size), size))))
    slots: dict[int, Slot] = {}
    planned = []
    for index in range(steps):
        dropped = range(SLOTS) if index == 0 else [chance.randrange(SLOTS)] * (index % 20 == 0)
        renewed = tuple((slot, _draw_slot(chance, len(groups))) for slot in dropped)
        slots.update(renewed)
        free = list(slots)
        chance.shuffle(free)
        calls = tuple(
            _draw_call(chance, groups, slots, free)
            for _ in range(chance.choices((1, 2, 4), (6, 3, 1))[0])
        )
        planned.append(Step(renewed, calls))
    return LanePlan(tuple(groups), tuple(planned))


def _draw_slot(chance: random.Random, groups: int) -> Slot:
    home = chance.randrange(groups) if chance.random() < 0.3 else None
    parts = int(2 ** chance.uniform(10.0, 15.0))
    return Slot(chance.choice(FLOATS * 2 + INTEGERS), _GRAIN * parts, home)


def _draw_call(
    chance: random.Random,
    groups: list[tuple[int, ...]],
    slots: dict[int, Slot],
    free: list[int],
) -> Call:
    group = chance.randrange(len(groups))
    ranks = len(groups[group])
    root, seed = chance.randrange(ranks), chance.randrange(1 << 16)
    if free and chance.random() < 0.5:
        number = free.pop()
        slot = slots[number]
        collective = chance.choices(_ON_SLOTS, _SLOT_WEIGHTS)[0]
        dtype, count, memory = slot.dtype, slot.count, "slot"
    else:
        number = None
        collective = chance.choices(COLLECTIVES, _WEIGHTS)[0]
        dtype = chance.choice(FLOATS + INTEGERS)
        low, high = chance.choices(_COUNT_RANGES, _COUNT_WEIGHTS)[0]
        count = int(2 ** chance.uniform(low, high)) * ranks
        memory = chance.choices(("fresh", "foreign", "view"), (5, 2, 2))[0]
        # NumPy has no bfloat16.
        memory = "fresh" if memory == "foreign" and dtype == "bfloat16" else memory
    op = chance.choice(_FLOAT_OPS if dtype in FLOATS else _INTEGER_OPS)
    return Call(collective, group, dtype, count, op, root, memory, number, seed)
