# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules of a pipeline: which microbatch a rank works on, and when.

    schedule      the words (task, phase), and the protocol: what a schedule is asked
    simple        one schedule
    interleaved   one schedule, the default
    ordering      the order of a rank's work under a schedule, over any graph of segments
    simulation    who does what when in a chain of visits, and the bubble and memory that follow

`SCHEDULES` below is the registry. The check of the parameter `pipeline`, predictions, reports,
tests and tools iterate over it. To add a schedule, write its file and its test, add its class to
the registry, and name it in docs/model_parallel.md.

Source: modelparallel specification, section 3.6.
"""

from collections.abc import Callable, Mapping

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.schedules.schedule import Schedule
from smdistributed.modelparallel.decide.schedules.simple import Simple

__all__ = ["PIPELINES", "SCHEDULES", "schedule_named"]

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {
    each.name: each for each in (Interleaved, Simple)
}
"""By name, what makes a schedule of `microbatches` and `active_microbatches`."""

# The original accepts this name too. Its scripts get the schedule that starts every forward pass
# before any backward pass.
_OTHER_NAMES = {"_only_forward": Simple.name}

PIPELINES = (*SCHEDULES, *_OTHER_NAMES)
"""The values of the parameter `pipeline`."""


def schedule_named(pipeline: str, microbatches: int, active_microbatches: int) -> Schedule:
    """The schedule of one step.

    Args:
        pipeline: one of `PIPELINES`.
        microbatches: of the step.
        active_microbatches: microbatches that may be under way at a time.

    Raises:
        ConfigurationError: there is no such schedule; a file of another release may name it.
    """
    make = SCHEDULES.get(_OTHER_NAMES.get(pipeline, pipeline))
    if make is None:
        raise ConfigurationError(
            f"pipeline is {pipeline!r}; expected one of {', '.join(PIPELINES)}. If the name comes"
            " from a file of another release, read the file with that release."
        )
    return make(microbatches, active_microbatches)
