# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.recording()` and `smp.report()`: what the ranks did with their time and memory.

The driver keeps what it does in steps, if it is asked to; else that costs nothing.

Source: our choice; docs/pipeline_report.md.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.report.costs import settings_of
from smdistributed.modelparallel.report.document import Report, report_of_records
from smdistributed.modelparallel.report.recording import (
    MOST_STEPS,
    about_process,
    asked_path,
    refuse_second_recording,
    require_records,
    require_several_partitions,
    write_at_exit,
)
from smdistributed.modelparallel.report.records import Memory, RankRecord
from smdistributed.modelparallel.tensorflow.graph.tracing import current_trace
from smdistributed.modelparallel.tensorflow.job.state import Job, state
from smdistributed.modelparallel.tensorflow.reporting.records import (
    program_record,
    step_record,
    telling,
)
from smdistributed.modelparallel.tensorflow.run.record import StepRecord
from smdistributed.modelparallel.tensorflow.step.pipeline import (
    Pipeline,
    call_with_each_pipeline,
    current_pipeline,
)
from smdistributed.modelparallel.tensorflow.variables import raw

__all__ = ["recording", "report", "start_from_environment"]


class _Recording:
    """Of this process.

    Attributes:
        job: whose steps are recorded.
        keeping: what ends the recording when nobody has it any longer.
    """

    def __init__(self, job: Job, steps: deque[StepRecord], keeping: Any = None) -> None:
        self.job = job
        self.keeping = keeping
        self._steps = steps
        self._kept: RankRecord | None = None

    def record(self) -> RankRecord | None:
        """What is known by now; None: no step has been recorded that tells something."""
        if self._kept is not None:
            return self._kept
        steps = telling(self._steps)
        if not steps:
            return None
        last = {step.program.number: step for step in steps}
        job = self.job
        return RankRecord(
            **about_process(),
            rank=job.rank,
            world_size=job.size,
            partition=job.rank_in(GroupKind.PP),
            members=job.members(GroupKind.PP),
            settings=settings_of(job.config),
            rows=(),
            order=(),
            module_seconds={},
            memory=_memory(),
            steps=tuple(step_record(step) for step in steps),
            programs=tuple(program_record(each.program, each.sizes) for each in last.values()),
        )

    def keep(self) -> None:
        """The job ends: what is known of its model is asked for now."""
        self._kept = self.record()


_recording: _Recording | None = None
_is_under_way = False  # one that the script has begun


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Steps in this block are recorded, for `smp.report()`; on every rank of the pipeline (ours).

    Those of `fit` and its kin, too. The last 16 are kept; each turn costs them a few microseconds.
    The first run of a step function with a signature prepares what it calls, and is left out. So
    give it two steps or more. What does not run in a step, such as `apply_gradients`, is not
    recorded.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        RuntimeError: a recording is under way.
    """
    global _recording, _is_under_way
    job = state.require("smp.recording()")
    if _is_under_way:
        refuse_second_recording()
    pipeline = current_pipeline("smp.recording()")
    with pipeline.driver.recording(MOST_STEPS) as steps:
        _recording = _Recording(job, steps)
        _is_under_way = True
        try:
            yield
        finally:
            _is_under_way = False


def report() -> Report:
    """What the ranks of this pipeline did in the steps that were recorded (ours).

    A collective of the pipeline, blocking; not inside of a step or a `tf.function`. It is about one
    step function: the one that trains, if there are such, and of these the one that ran most. Each
    replica of a model is a pipeline of its own, with its own report.

    Returns: on every rank of the pipeline the same. `print` it, or see its methods.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        RuntimeError: no step has been recorded; there is one partition; it is called in a graph.
        SMDDPMismatch, SMDDPTimeoutError, SMDDPPeerLost: another rank of the pipeline does not call
            it.
    """
    job = state.require("smp.report()")
    require_several_partitions(job.has_pipeline)
    if current_trace() is not None or not tf.executing_eagerly():
        raise RuntimeError(
            "smp.report() was called in a step or a tf.function; expected it outside, after the"
            " steps that it tells of. Call it eagerly, on all ranks."
        )
    driver = current_pipeline("smp.report()").driver
    with driver.telling(until=lambda: driver.agreed):
        own = _recording.record() if _recording is not None and _recording.job is job else None
        records: list[Any] = driver.agree("calls smp.report()", own)
    require_records(records)
    return report_of_records(records)


def _memory() -> Memory:
    """Bytes of variables that are here."""
    model = state.model
    trained: list[Any] = [] if model is None else model.trainable_variables
    others: list[Any] = [] if model is None else model.non_trainable_variables
    return Memory(
        parameters=_num_bytes(trained),
        gradients=0,
        states=0,
        buffers=_num_bytes(others),
        grown=None,
        is_process=False,
    )


def _num_bytes(variables: list[Any]) -> int:
    found = {id(raw(each)): raw(each) for each in variables}
    return sum(
        int((each.shape.num_elements() or 0) * max(1, each.dtype.size)) for each in found.values()
    )


def start_from_environment() -> None:
    """Records all steps of the process, if `SMP_REPORT` asks for it, and writes at its end."""
    path = asked_path()
    if not path:
        return
    begun: list[_Recording] = []

    def begin(pipeline: Pipeline) -> None:
        global _recording
        if not pipeline.job.has_pipeline:
            return
        keeping = contextlib.ExitStack()  # open to the end; one of the script's interrupts it
        steps = keeping.enter_context(pipeline.driver.recording(MOST_STEPS))
        _recording = _Recording(pipeline.job, steps, keeping)
        begun[:] = [_recording]
        state.call_at_reset(_recording.keep)

    call_with_each_pipeline(begin)
    atexit.register(lambda pid: write_at_exit(path, pid, _record_of(begun)), os.getpid())


def _record_of(begun: list[_Recording]) -> RankRecord | None:
    return begun[0].record() if begun else None
