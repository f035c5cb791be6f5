# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of all ranks on one clock, and what they say: who was busy, which way microbatches went."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.decide.schedules.simulation import Visit
from smdistributed.modelparallel.report.expectation import visits
from smdistributed.modelparallel.report.perfetto import clocks_of
from smdistributed.modelparallel.report.records import RankRecord, Stretch

__all__ = ["Span", "Timeline", "comparable", "order_of", "timelines", "typical", "way_of"]

_FORWARD = Phase.FORWARD.value


class Span(NamedTuple):
    """A stretch of work, in seconds since the step began."""

    phase: str
    microbatch: int
    begin_s: float
    end_s: float
    what: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One step.

    Attributes:
        number: of the step.
        seconds: from the leader's beginning to its end.
        microbatches: of it.
        spans: by partition, in order of time.
        program: that ran, where programs are known.
    """

    number: int
    seconds: float
    microbatches: int
    spans: tuple[tuple[Span, ...], ...]
    program: int = 0

    @property
    def goes_back(self) -> bool:
        """Whether anybody did; a validation does not."""
        return any(span.phase != _FORWARD for own in self.spans for span in own)

    def busy_s(self, partition: int) -> float:
        """How long a partition has computed."""
        return sum(span.seconds for span in self.spans[partition])

    def bubble(self, partition: int) -> float:
        """The share of the step in which it has not."""
        return 1 - self.busy_s(partition) / self.seconds if self.seconds else 0.0


def timelines(records: Sequence[RankRecord]) -> list[Timeline]:
    """The steps that all ranks have recorded, in order.

    Args:
        records: one for each partition of a pipeline, by partition.

    Raises:
        ConfigurationError: there is no such step, or the records are not of one run.
    """
    clocks = clocks_of(records)
    steps = [{step.number: step for step in record.steps} for record in records]
    common = sorted(set(steps[0]).intersection(*steps[1:]))
    if not common:
        raise ConfigurationError(
            "no step has been recorded by every rank; expected the records of one run. Give the"
            " files of one run: old ones may lie beside new ones."
        )
    found = []
    for number in common:
        leader = steps[0][number]
        zero = clocks[0](leader.begin_ns)
        found.append(
            Timeline(
                number,
                (leader.end_ns - leader.begin_ns) * 1e-9,
                leader.microbatches,
                tuple(
                    tuple(
                        Span(
                            each.phase,
                            each.microbatch,
                            (clock(each.begin_ns) - zero) * 1e-9,
                            (clock(each.end_ns) - zero) * 1e-9,
                            each.what,
                        )
                        for each in own[number].stretches
                    )
                    for own, clock in zip(steps, clocks, strict=True)
                ),
                leader.program,
            )
        )
    return found


def order_of(stretches: Sequence[Stretch], num_visits: int) -> list[Task]:
    """What a rank did, one after the other.

    Args:
        stretches: of one step, in order of time.
        num_visits: of a microbatch at this rank. A pass has as many stretches that compute; the
            shorter ones take something up, or hand it on.
    """
    passes: dict[Task, list[int]] = {}
    for index, stretch in enumerate(stretches):
        phase = Phase.FORWARD if stretch.phase == _FORWARD else Phase.BACKWARD
        passes.setdefault(Task(phase, stretch.microbatch), []).append(index)
    order: dict[int, Task] = {}
    for task, indices in passes.items():
        indices.sort(key=lambda at: stretches[at].begin_ns - stretches[at].end_ns)
        del indices[max(1, num_visits) :]
        order |= dict.fromkeys(indices, task)
    return [order[index] for index in sorted(order)]


def comparable(steps: Sequence[Timeline]) -> list[Timeline]:
    """Those that do the same as most: of training, if there are such."""
    training = [step for step in steps if step.goes_back] or list(steps)
    kinds = [(step.program, step.microbatches) for step in training]
    most = Counter(kinds).most_common(1)[0][0]
    return [step for step, kind in zip(training, kinds, strict=True) if kind == most]


def typical(steps: Sequence[Timeline]) -> Timeline:
    """The step of median length."""
    return sorted(steps, key=lambda step: step.seconds)[(len(steps) - 1) // 2]


def way_of(steps: Sequence[Timeline]) -> list[Visit]:
    """The way of a microbatch, and the time it takes at each visit: medians over steps."""
    partitions = range(len(steps[0].spans))
    forward, back = (
        {partition: _pass_s(steps, partition, is_forward) for partition in partitions}
        for is_forward in (True, False)
    )
    ways = [way for step in steps for way in _ways(step)]
    if not ways:
        return visits(list(forward.items()), back)
    shapes = Counter(tuple(visit.rank for visit in way) for way in ways)
    shape = shapes.most_common(1)[0][0]
    alike = [way for way in ways if tuple(visit.rank for visit in way) == shape]
    # Shares of a partition's time among its visits; the time itself from all microbatches.
    means = [statistics.mean(way[at].forward_s for way in alike) for at in range(len(shape))]
    sums = {
        partition: sum(mean for mean, rank in zip(means, shape, strict=True) if rank == partition)
        for partition in partitions
    }
    return visits(
        [
            (rank, forward[rank] * mean / sums[rank] if sums[rank] else 0.0)
            for rank, mean in zip(shape, means, strict=True)
        ],
        back,
    )


def _ways(step: Timeline) -> list[list[Visit]]:
    """By microbatch, its forward."""
    spans: dict[int, list[tuple[float, int, float]]] = {}
    for partition, own in enumerate(step.spans):
        for span in own:
            if span.phase == _FORWARD:
                spans.setdefault(span.microbatch, []).append(
                    (span.begin_s, partition, span.seconds)
                )
    return [
        visits([(partition, seconds) for _, partition, seconds in sorted(own)], {})
        for own in spans.values()
    ]


def _pass_s(steps: Sequence[Timeline], partition: int, is_forward: bool) -> float:
    """Seconds of one microbatch's forward, or of its way back, on a partition: the median."""
    return statistics.median(
        sum(
            span.seconds for span in step.spans[partition] if (span.phase == _FORWARD) == is_forward
        )
        / max(1, step.microbatches)
        for step in steps
    )
