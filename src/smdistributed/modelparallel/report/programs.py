# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a report says of programs, which are what ranks run of a step that is cut beforehand."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from smdistributed.modelparallel.report.costs import OUTSIDE_ROW, Row, Settings
from smdistributed.modelparallel.report.expectation import Expected, expect_of_graph
from smdistributed.modelparallel.report.segments import (
    RankProgram,
    TurnSeconds,
    graph_of,
    peak_held,
    play,
)
from smdistributed.modelparallel.report.timeline import Timeline, typical

__all__ = [
    "expect_of_programs",
    "names_of_segments",
    "rows_of_segments",
    "seconds_of_segments",
]

_FORWARD = "F"


def seconds_of_segments(
    programs: Sequence[RankProgram], steps: Sequence[Timeline]
) -> dict[str, float]:
    """By key: of one microbatch, the median over steps."""
    found: dict[str, list[float]] = {}
    for partition, program in enumerate(programs):
        for step in steps:
            sums: dict[str, float] = {}
            spans = step.spans[partition]
            for (key, _), span in zip(program.turns, spans, strict=True):
                sums[key] = sums.get(key, 0.0) + span.seconds
            for key, spent in sums.items():
                found.setdefault(key, []).append(spent / program.microbatches)
    return {key: statistics.median(each) for key, each in found.items()}


def _turn_seconds(programs: Sequence[RankProgram], step: Timeline) -> TurnSeconds:
    return {
        turn: span.seconds
        for program, own in zip(programs, step.spans, strict=True)
        for turn, span in zip(program.turns, own, strict=True)
    }


def names_of_segments(programs: Sequence[RankProgram]) -> dict[str, str]:
    """By key, their layers."""
    return {each.key: each.what for program in programs for each in program.segments}


def expect_of_programs(
    programs: Sequence[RankProgram],
    seconds: Mapping[str, float],
    settings: Settings,
    steps: Sequence[Timeline] = (),
) -> Expected:
    """A step of programs whose segments take so long.

    Args:
        programs: by partition.
        seconds: by key of a segment.
        steps: that ran, if any did; see `expect_of_graph`.
    """
    graph = graph_of(programs, seconds)
    lists = tuple(program.turns for program in programs)
    guesses = [segment.seconds for segment in programs[0].graph]
    found = tuple(_turn_seconds(programs, step) for step in steps)
    expected = expect_of_graph(graph, guesses, lists, settings, found)
    bound = settings.schedule().bound
    peaks = [peak_held(programs, play(graph, lists, bound, each)) for each in found or (None,)]
    is_known = all(None not in each for each in peaks)
    sent: dict[str, int] = {}
    edges = [(source, edge) for source, each in enumerate(programs) for edge in each.edges]
    if all(edge.num_bytes is not None for _, edge in edges):
        for source, edge in edges:
            pair = f"{source}-{edge.dest}"
            sent[pair] = sent.get(pair, 0) + (edge.num_bytes or 0) * settings.microbatches
    return dataclasses.replace(
        expected,
        peak_bytes=tuple(max(each or 0 for each in own) for own in zip(*peaks, strict=True))
        if is_known
        else (),
        sent_bytes=sent,
        turn_seconds=tuple(tuple(span.seconds for span in own) for own in typical(steps).spans)
        if steps
        else (),
    )


def rows_of_segments(
    programs: Sequence[RankProgram], seconds: Mapping[str, float]
) -> tuple[Row, ...]:
    """Layers, in the order in which they are called first, with shares of their segments' times.

    Args:
        programs: by partition.
        seconds: by key of a segment.
    """
    rows = {row.path: row for row in programs[0].rows}
    found: dict[tuple[str, int], Row] = {(row.path, row.partition): row for row in rows.values()}
    for partition, program in enumerate(programs):
        for segment in program.segments:
            total = sum(share for _, share in segment.shares)
            for path, share in segment.shares or ((OUTSIDE_ROW, 1.0),):
                key = (path, partition)
                if key not in found:
                    key = (OUTSIDE_ROW, partition)
                row = found.setdefault(key, Row(OUTSIDE_ROW, partition, 0))
                spent = seconds.get(segment.key, 0.0) * (share / total if total else 1.0)
                is_forward = segment.phase == _FORWARD
                found[key] = dataclasses.replace(
                    row,
                    forward_s=row.forward_s + spent * is_forward,
                    backward_s=row.backward_s + spent * (not is_forward),
                )
    return tuple(found.values())
