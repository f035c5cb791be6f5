# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.recording()` and `smp.report()`: what the ranks did with their time and memory.

Recording is asked for, as one step of it is looked at closely, which takes longer.

Source: our choice; docs/pipeline_report.md.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.report.costs import Profile, Row, settings_of
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
from smdistributed.modelparallel.report.records import RankRecord
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.pipeline.loop.recorder import (
    Observer,
    Recorder,
    active_recorder,
    set_recorder,
)
from smdistributed.modelparallel.torch.reporting.close_look import CloseLook
from smdistributed.modelparallel.torch.reporting.peak_memory import PeakMemory
from smdistributed.modelparallel.torch.reporting.plan import Plan
from smdistributed.modelparallel.torch.reporting.rows import rows_of

__all__ = ["recording", "report", "start_from_environment"]


class _Recording:
    """Of this process: the recorder, and what is known of the rank.

    Attributes:
        job: whose steps are recorded; None before the first one.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.recorder = Recorder(MOST_STEPS, self._observe)
        self._look: CloseLook | None = None
        self._about: dict[str, Any] = {}

    def _observe(self, num_steps: int) -> Observer | None:
        model, job = state.model, state.require("a recording")
        if self.job is not job:  # another smp.init() since: what was before is of other ranks
            self.job, self._look, num_steps = job, None, 0
            self.recorder.forget()
        if num_steps > 0 or model is None:
            return None
        placement = model.placement("a recording")
        names = dict(zip(placement.modules, placement.paths, strict=True))
        self._about = _about(job, placement)
        self._look = CloseLook(names, PeakMemory(job.device), lambda: _standing(placement))
        return self._look

    def record(self) -> RankRecord | None:
        """What is known by now; None: no step has been recorded."""
        if not self.recorder.steps or self._look is None:
            return None
        return RankRecord(
            **self._about,
            order=tuple(self._look.order.items()),
            module_seconds=self._look.seconds,
            memory=self._look.memory,
            steps=tuple(self.recorder.steps),
        )


_recording: _Recording | None = None
_of_environment: Recorder | None = None  # which gives way to another one for a while


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Steps in this block are recorded, for `smp.report()`; on every rank of the pipeline (ours).

    The first one is looked at closely: the memory at its peak, and the time of each module, which
    makes it slower. The others, of which the last 16 are kept, tell who computed when: that costs
    them microseconds. A step that learns what modules return, as the first one of a job does, is
    left out. So give it three steps or more.

    Raises:
        RuntimeError: a recording is under way.
    """
    global _recording
    before = active_recorder()
    if before is not None and before is not _of_environment:
        refuse_second_recording()
    _recording = _Recording()
    set_recorder(_recording.recorder)
    try:
        yield
    finally:
        set_recorder(before)
        _recording.recorder.close()


def report(plan: Plan | None = None) -> Report:
    """What the ranks of this pipeline did in the steps that were recorded (ours).

    A collective of the pipeline, blocking; not inside of a step.

    Args:
        plan: of `smp.plan()`, for the memory that was to be expected; that of the leader counts.

    Returns: on every rank the same. `print` it, or see its methods.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        RuntimeError: no step has been recorded; there is one partition.
    """
    job = state.require("smp.report()")
    require_several_partitions(job.has_pipeline)
    own = None
    if _recording is not None and _recording.job is job:
        own = _recording.record()
    profile = None if plan is None else plan.profile(job.config.microbatches)
    states = 0.0 if plan is None else plan.states_per_parameter
    gathered: list[Any] = [None] * job.size_of(GroupKind.PP)
    dist.all_gather_object(gathered, (own, profile, states), group=job.cpu_group(GroupKind.PP))
    records = [record for record, *_ in gathered]
    require_records(records)
    leaders: tuple[Profile | None, float] = gathered[0][1:]
    return report_of_records(records, *leaders)


def _about(job: Job, placement: Placement) -> dict[str, Any]:
    """What does not change from step to step."""
    rows: tuple[Row, ...] = rows_of(placement.model, placement.decision)
    return {
        "rank": job.rank,
        "world_size": job.size,
        "partition": job.rank_in(GroupKind.PP),
        "members": job.members(GroupKind.PP),
        **about_process(),
        "settings": settings_of(job.config),
        "rows": rows,
    }


def _standing(placement: Placement) -> tuple[int, int, int, int]:
    """Bytes of parameters, gradients, optimizer states and buffers that are here."""
    parameters: list[nn.Parameter] = [each for _, each in placement.local_parameters()]
    gradients = [each.grad for each in parameters if each.grad is not None]
    states: Mapping[Any, Any] = getattr(state.optimizer, "state", None) or {}
    tensors = [
        leaf
        for kept in states.values()
        if isinstance(kept, Mapping)
        for leaf in kept.values()
        if isinstance(leaf, Tensor)
    ]
    return (
        _num_bytes(parameters),
        _num_bytes(gradients),
        _num_bytes(tensors),
        _num_bytes([each for _, each in placement.local_buffers()]),
    )


def _num_bytes(tensors: list[Any]) -> int:
    storages = {id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def start_from_environment() -> None:
    """Records all steps of the process, if `SMP_REPORT` asks for it, and writes at its end."""
    global _recording, _of_environment
    path = asked_path()
    if not path or _recording is not None:
        return
    _recording = _Recording()
    _of_environment = _recording.recorder
    set_recorder(_of_environment)
    atexit.register(_write_at_exit, path, os.getpid(), _recording)


def _write_at_exit(path: str, pid: int, recording: _Recording) -> None:
    write_at_exit(path, pid, recording.record())
