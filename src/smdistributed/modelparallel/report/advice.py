# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What to change about a pipeline, and what that would bring.

Each piece of advice is a prediction by the rules of the schedule from times that are known; it does
not know what a smaller microbatch costs beyond its share, nor how much memory there is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from smdistributed.modelparallel.report.costs import OUTSIDE_ROW, Row, Settings
from smdistributed.modelparallel.report.expectation import (
    Expected,
    expect,
    expect_again,
    expect_alike,
    expect_of_graph,
    visits,
)
from smdistributed.modelparallel.report.segments import lists_of
from smdistributed.modelparallel.report.words import Words, seconds_text, words_of

__all__ = ["Measured", "Move", "advise", "better_moves", "enough_microbatches"]

# The fullest partition over the mean: less is balanced.
_UNBALANCED = 1.1
# A bubble of the busiest rank, and what a change must save to be worth a line; shares of a step.
_LARGE_BUBBLE = 0.1
_LEAST_GAIN = 0.05
# A step over what it should take.
_SLOW = 1.15
_FACTORS = (2, 3, 4, 6, 8, 12, 16)
_MOST_MOVES = 16


@dataclasses.dataclass(frozen=True)
class Measured:
    """What of a measurement there is advice about.

    Attributes:
        step_s: median.
        leader_pieces: of a microbatch's forward on partition 0, most often.
    """

    step_s: float
    leader_pieces: int


@dataclasses.dataclass(frozen=True)
class Move:
    """A row that would better be elsewhere."""

    path: str
    source: int
    dest: int


def advise(
    settings: Settings, rows: Sequence[Row], expected: Expected, measured: Measured | None
) -> list[str]:
    """Paragraphs; one that says so if there is nothing to say.

    Balance comes first, as it changes all that follows; then what brings most.

    Args:
        settings: of the pipeline.
        rows: in order of execution.
        expected: of these.
        measured: None where nothing was.
    """
    overhead = _about_overhead(expected, measured)
    # Of what has not run only medians are known: it is compared with those of what has.
    alike = expect_alike(expected, settings)
    others = [*_about_bubble(settings, alike), *_about_order(settings, alike), *overhead]
    others.sort(key=lambda pair: -pair[0])
    found = [*_about_balance(settings, rows, alike), *(text for _, text in others)]
    if found:
        return found
    busiest = 1 - min(expected.bubble)
    return [f"Nothing stands out: the busiest rank computes {busiest:.0%} of a step."]


# --- balance ---


def _about_balance(settings: Settings, rows: Sequence[Row], expected: Expected) -> list[str]:
    busy = expected.busy_s
    mean = sum(busy) / len(busy)
    if not mean or max(busy) < _UNBALANCED * mean:
        return []
    fullest = busy.index(max(busy))
    text = (
        f"Partition {fullest} is overloaded: it does {max(busy) / sum(busy):.0%} of the computing,"
        f" where {1 / len(busy):.0%} would be even. The others wait for it."
    )
    moves, after = better_moves(settings, rows)
    before = _expect_of_rows(settings, rows).step_s
    gain = 1 - after.step_s / before if before and moves else 0.0
    if gain < _LEAST_GAIN:
        return [text + _why_stuck(rows, fullest, words_of(settings.framework))]
    return [text + _how_to_move(settings, moves, gain, expected)]


def _how_to_move(settings: Settings, moves: Sequence[Move], gain: float, expected: Expected) -> str:
    by_dest: dict[int, list[str]] = {}
    for move in moves:
        by_dest.setdefault(move.dest, []).append(move.path)
    what = "; ".join(
        f"{', '.join(paths)} to partition {dest}" for dest, paths in sorted(by_dest.items())
    )
    text = (
        f" Move {what}: a step would take {seconds_text(expected.step_s * (1 - gain))} instead of"
        f" {seconds_text(expected.step_s)} ({1 / (1 - gain):.2f} times as fast)."
    )
    words = words_of(settings.framework)
    if not settings.auto_partition:
        return f"{text} {words.by_hand}"
    if settings.memory_weight > 0.5:
        return text + (
            f" The automatic partition minds memory more than time (memory_weight"
            f' {settings.memory_weight:g}): set "optimize": "speed", if the memory is there.'
        )
    return f"{text} {words.automatic}"


def _why_stuck(rows: Sequence[Row], fullest: int, words: Words) -> str:
    here = [row for row in rows if row.partition == fullest]
    if not here:
        return ""
    largest = max(here, key=lambda row: row.seconds)
    share = largest.seconds / (sum(row.seconds for row in rows) or 1.0)
    name = words.path(largest.path)
    text = f" No move of a whole {words.part} would help: {name} alone takes {share:.0%}."
    return text + (words.divide if largest.can_move else words.cannot_move)


def better_moves(settings: Settings, rows: Sequence[Row]) -> tuple[list[Move], Expected]:
    """What would better be elsewhere, and what that leads to.

    Where partitions are runs in the order of execution, they stay runs, and the ends of these move;
    else single rows do, one after the other, each the best there is.
    """
    places = _recut(settings, rows) or _moved_one_by_one(settings, rows)
    moves = [
        Move(row.path, row.partition, place)
        for row, place in zip(rows, places, strict=True)
        if place != row.partition
    ]
    new = [
        dataclasses.replace(row, partition=place) for row, place in zip(rows, places, strict=True)
    ]
    return moves, _expect_of_rows(settings, new)


def _recut(settings: Settings, rows: Sequence[Row]) -> list[int] | None:
    """Places in runs of which the fullest has least to do; None where there are no runs now."""
    inside = [index for index, row in enumerate(rows) if row.seconds and row.path != OUTSIDE_ROW]
    runs = [place for place, _ in itertools.groupby(rows[index].partition for index in inside)]
    if len(runs) < settings.partitions or len(set(runs)) < len(runs):
        return None
    fixed = [0.0] * settings.partitions
    for row in rows:
        if row.path == OUTSIDE_ROW:
            fixed[row.partition] += row.seconds
    # By number of rows that have a place: the largest load so far, how many changed, their places.
    best: dict[int, tuple[float, int, list[int]]] = {0: (0.0, 0, [])}
    for place in runs:
        after: dict[int, tuple[float, int, list[int]]] = {}
        for begin, (largest, num_moved, chosen) in best.items():
            load, moved, end = fixed[place], num_moved, begin
            while True:
                found = max(largest, load), moved, [*chosen, *[place] * (end - begin)]
                if end not in after or found[:2] < after[end][:2]:
                    after[end] = found
                if end == len(inside):
                    break
                row = rows[inside[end]]
                if not row.can_move and row.partition != place:
                    break
                load += row.seconds
                moved += row.partition != place
                end += 1
        best = after
    if len(inside) not in best:
        return None
    places = [row.partition for row in rows]
    for index, place in zip(inside, best[len(inside)][2], strict=True):
        places[index] = place
    return places


def _moved_one_by_one(settings: Settings, rows: Sequence[Row]) -> list[int]:
    places = [row.partition for row in rows]
    least = _LEAST_GAIN / 10 * sum(row.seconds for row in rows)
    for _ in range(_MOST_MOVES):
        loads = _loads(settings, rows, places)
        fullest = loads.index(max(loads))
        tried = [
            (max(_loads(settings, rows, after)), after)
            for index, row in enumerate(rows)
            if places[index] == fullest and row.can_move and row.seconds
            for dest in range(settings.partitions)
            for after in [[*places[:index], dest, *places[index + 1 :]]]
        ]
        better = [each for each in tried if each[0] < max(loads) - least]
        if not better:
            break
        places = min(better)[1]
    return places


def _loads(settings: Settings, rows: Sequence[Row], places: Sequence[int]) -> list[float]:
    loads = [0.0] * settings.partitions
    for row, place in zip(rows, places, strict=True):
        loads[place] += row.seconds
    return loads


def _expect_of_rows(settings: Settings, rows: Sequence[Row]) -> Expected:
    back: dict[int, float] = {}
    for row in rows:
        back[row.partition] = back.get(row.partition, 0.0) + row.backward_s
    return expect(visits([(row.partition, row.forward_s) for row in rows], back), settings)


# --- bubble ---


def _about_bubble(settings: Settings, expected: Expected) -> list[tuple[float, str]]:
    bubble = min(expected.bubble)
    if bubble < _LARGE_BUBBLE:
        return []
    found = []
    active = _enough_active(settings, expected)
    if active is not None:
        bound, gain = active
        text = (
            f"active_microbatches: {settings.active_microbatches} keeps ranks waiting."
            f' "active_microbatches": {bound} would make a step {1 / (1 - gain):.2f} times as fast,'
            " and keep as many microbatches in memory."
        )
        found.append((gain, text))
    more = enough_microbatches(settings, expected)
    if more is not None:
        microbatches, after = more
        gain = 1 - after.step_s / expected.step_s
        target = "" if min(after.bubble) < _LARGE_BUBBLE else " at best"
        text = (
            f"Microbatches are too few: with {settings.microbatches} even the busiest rank waits"
            f' {bubble:.0%} of a step. "microbatches": {microbatches} would bring that to'
            f" {min(after.bubble):.0%}{target}: a step of {seconds_text(after.step_s)} instead of"
            f" {seconds_text(expected.step_s)}, if smaller pieces compute as well as larger ones."
        )
        found.append((gain, text))
    return found


def enough_microbatches(settings: Settings, expected: Expected) -> tuple[int, Expected] | None:
    """The smallest multiple of the microbatches with a small bubble, or the best one tried.

    None if more would not help.
    """
    best = None
    for factor in _FACTORS:
        more = settings.with_microbatches(settings.microbatches * factor)
        after = expect_again(expected, more, factor)
        if best is None or after.step_s < best[1].step_s * (1 - _LEAST_GAIN):
            best = more.microbatches, after
        if min(after.bubble) < _LARGE_BUBBLE:
            break
    if best is None or best[1].step_s > expected.step_s * (1 - _LEAST_GAIN):
        return None
    return best


def _enough_active(settings: Settings, expected: Expected) -> tuple[int, float] | None:
    """The smallest bound of active microbatches that is as good as none, and what it gains."""
    all_active = dataclasses.replace(settings, active_microbatches=settings.microbatches)
    if all_active.schedule().bound == settings.schedule().bound:
        return None
    best = expect_again(expected, all_active).step_s
    if best > expected.step_s * (1 - _LEAST_GAIN):
        return None
    for bound in range(settings.active_microbatches + 1, settings.microbatches + 1):
        more = dataclasses.replace(settings, active_microbatches=bound)
        step_s = expect_again(expected, more).step_s
        if step_s <= best * 1.01:
            return bound, 1 - step_s / expected.step_s
    return None


# --- the order of segments ---


def _about_order(settings: Settings, expected: Expected) -> list[tuple[float, str]]:
    """What the lists cost, as they follow from guesses."""
    if not expected.graph:
        return []
    lists = lists_of(expected.graph, settings)
    after = expect_of_graph(expected.graph, expected.guesses, lists, settings)
    gain = 1 - after.step_s / expected.step_s if expected.step_s else 0.0
    if gain < _LEAST_GAIN:
        return []
    text = (
        f"The order in which ranks run segments costs {gain:.0%} of a step: it is decided from"
        " guesses of their times before the first step, and with the measured ones a step would"
        f" take {seconds_text(after.step_s)}. Other numbers of microbatches, and of"
        " active_microbatches, lead to other orders."
    )
    return [(gain, text)]


# --- what computing does not explain ---


def _about_overhead(expected: Expected, measured: Measured | None) -> list[tuple[float, str]]:
    if measured is None or measured.step_s < _SLOW * expected.step_s:
        return []
    lost = 1 - expected.step_s / measured.step_s
    text = (
        f"{lost:.0%} of a step is neither computing nor the bubble of the schedule: messages, and"
        " waits that nothing in the schedule asks for."
    )
    num_visits = sum(visit.rank == 0 for visit in expected.way)
    if not expected.graph and measured.leader_pieces > num_visits:
        text += (
            f" A microbatch's forward comes in {measured.leader_pieces} pieces on partition 0: it"
            " looks at results of other ranks in between. See what forces a wait in"
            " docs/model_parallel.md, under lazy results."
        )
    else:
        text += " Larger microbatches have more work for each message; and each process needs cores"
        text += " of its own."
    return [(lost, text)]
