# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From what the driver keeps of steps to what a report is made of: plain data, without TensorFlow.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.report import records
from smdistributed.modelparallel.report.segments import Edge, Hold, RankProgram, RankSegment
from smdistributed.modelparallel.tensorflow.run.program import Kept, Program, Received, Source
from smdistributed.modelparallel.tensorflow.run.record import StepRecord

__all__ = ["program_record", "step_record", "telling"]


def telling(steps: Iterable[StepRecord]) -> list[StepRecord]:
    """Those whose times tell something: the first run of a program prepares what it calls."""
    return [step for step in steps if not step.is_first]


def step_record(step: StepRecord) -> records.StepRecord:
    """Of one step on this rank."""
    segments = step.program.segments
    return records.StepRecord(
        number=step.number,
        microbatches=step.program.microbatches,
        begin_ns=_ns(step.begin_s),
        end_ns=_ns(step.end_s),
        told_ns=_ns(step.told_s),
        stretches=tuple(
            records.Stretch(
                _letter(segments[ran.segment].phase),
                ran.microbatch,
                _ns(ran.begin_s),
                _ns(ran.end_s),
                segments[ran.segment].name,
            )
            for ran in step.turns
        ),
        sent=tuple(
            records.Sent(dest, kind, *figures)
            for (dest, kind), figures in sorted(step.sent.items())
        ),
        program=step.program.number,
        held_bytes=step.peak_bytes,
    )


def program_record(program: Program, measured: Mapping[tuple[Hashable, int], int]) -> RankProgram:
    """Of what a rank runs.

    Args:
        measured: by segment and output, bytes of those of which the graph does not say how many.
    """
    edges, holds = [], []
    for key, segment in program.segments.items():
        sizes = [
            measured.get((key, output)) if size is None else size
            for output, size in enumerate(segment.sizes)
        ]
        for send in segment.sends:
            size = sizes[send.output]
            edges += [Edge(send.edge, str(key), dest, size) for dest in send.destinations]
        for output, slot in segment.keeps:
            users = _users(program, Kept(slot))
            holds.append(Hold(None, str(key), users, sizes[output]))
    holds += [Hold(each.edge, "", _users(program, each), None) for each in _received(program)]
    return RankProgram(
        number=program.number,
        name=program.name,
        microbatches=program.microbatches,
        bound=program.bound or program.microbatches,
        rows=tuple(program.rows),
        graph=tuple(program.graph),
        segments=tuple(
            RankSegment(str(key), _letter(segment.phase), segment.name, segment.shares)
            for key, segment in program.segments.items()
        ),
        turns=tuple((str(key), microbatch) for key, microbatch in program.turns),
        edges=tuple(edges),
        holds=tuple(holds),
    )


def _received(program: Program) -> list[Received]:
    """What comes from other ranks, each once."""
    inputs = (source for segment in program.segments.values() for source in segment.inputs)
    return list(dict.fromkeys(each for each in inputs if isinstance(each, Received)))


def _users(program: Program, source: Source) -> tuple[str, ...]:
    return tuple(str(key) for key, each in program.segments.items() if source in each.inputs)


def _letter(phase: str) -> str:
    return Phase[phase.upper()].value


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
