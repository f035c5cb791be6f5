# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks that share a model's replica: the channel between them, and the step they are in."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.settings import process_settings
from smdistributed.collectives import _native
from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.modelparallel.decide.schedules import schedule_named
from smdistributed.modelparallel.decide.schedules.schedule import Schedule
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.pipeline.alone import Alone
from smdistributed.modelparallel.torch.pipeline.gradient_scale import Scale
from smdistributed.modelparallel.torch.pipeline.progress.habits import Habits
from smdistributed.modelparallel.torch.pipeline.progress.outcome import Outcome
from smdistributed.modelparallel.torch.pipeline.runner import Runner
from smdistributed.modelparallel.torch.replicas.failures import (
    reason_of_replica,
    said_by,
    tell_replicas,
)

__all__ = ["Batch", "Moment", "Pipeline", "current_pipeline", "is_tracing"]


class Batch(NamedTuple):
    """A batch that has been cut; on a rank that does not lead it is empty.

    Attributes:
        bodies: by microbatch, the step function with its arguments.
        weights: of the microbatches in a mean over the batch; None: all the same.
    """

    bodies: Sequence[Callable[[], Any]] = ()
    weights: Sequence[float] | None = None


class Moment(enum.Enum):
    """What a rank is doing."""

    OUTSIDE = "outside of a step"
    OBSERVING = "watching one microbatch, to decide the partition"  # `smp.is_tracing()`
    STEP = "in a step"  # from making the model ready to the end of its hooks


class Pipeline:
    """Of one rank; made at its first step.

    Attributes:
        moment: what this rank is doing.
        helpers: by partition, the module that runs rows of modules there for other ranks.
        peak_microbatches: that were under way at the same time, in the last step; on the leader.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rank = job.rank_in(GroupKind.PP)
        self.size = job.size_of(GroupKind.PP)
        self.moment = Moment.OUTSIDE
        self.helpers: Sequence[nn.Module] = ()
        self.peak_microbatches = 0
        self._channel: _native.Communicator | None = None
        self._runner: Runner | None = None
        self._alone = Alone()  # runs steps if there is one rank
        self._forgets_model = False
        self._weights: Sequence[float] = ()

    @property
    def is_leader(self) -> bool:
        """Whether the step's body runs here."""
        return self.rank == 0

    @property
    def is_in_step(self) -> bool:
        """Whether a step is under way."""
        return self.moment is Moment.STEP

    @property
    def is_outside(self) -> bool:
        """Whether no user code runs that belongs to a step: gradients are complete, or none are."""
        return self.moment is Moment.OUTSIDE

    # --- the model -------------------------------------------------------------------------------

    def place(self, placement: Placement | None, helpers: Sequence[nn.Module] = ()) -> None:
        """From now on modules run where they have been placed; a collective of the pipeline.

        Args:
            placement: of the model; None: there is none.
            helpers: a module for each partition, which runs there.
        """
        if self._runner is not None:
            self._runner.close()
        modules: Sequence[nn.Module] = placement.modules if placement else ()
        paths: Sequence[str] = placement.paths if placement else ()
        owners = placement.owners if placement else {}
        self.helpers = helpers
        self._runner = Runner(
            self.rank,
            self.size,
            self._open_channel(),
            [*modules, *helpers],
            [*paths, *(f"checkpointed modules of partition {r}" for r in range(len(helpers)))],
            {**owners, **{helper: place for place, helper in enumerate(helpers)}},
            self.job.device,
            process_settings().timeout_s,
            self._runner,
        )

    def forget_model(self) -> None:
        """Lets go of its modules, after the step if one runs. Not collective."""
        if self.is_in_step:
            self._forgets_model = True
        elif self._runner is not None:
            self.place(None)  # its channel is open

    def runner(self) -> Runner:
        """What runs steps where there are several ranks; without a model it has no modules."""
        if self._runner is None:
            self.place(None)
        assert self._runner is not None
        return self._runner

    # --- a step, in the order of its parts (`step.StepFunction.__call__`) ------------------------

    def partition_model(self, batch: Batch) -> None:
        """Decides where the model's parts go, if that is open; a collective of all ranks."""
        model = state.model
        if model is not None and not model.partitioned:
            model.partition(self, batch.bodies[0] if batch.bodies else None)

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """In this block the step's body runs on one microbatch, to decide the partition."""
        self.moment = Moment.OBSERVING
        try:
            with self.in_body():
                yield
        finally:
            self.moment = Moment.OUTSIDE

    @contextlib.contextmanager
    def step_under_way(self, batch: Batch) -> Iterator[None]:
        """In this block the step is under way; if it raises, the other replicas learn why."""
        model = state.model
        count = max(1, len(batch.bodies))
        self._weights = batch.weights or [1.0 / count] * count
        self.moment = Moment.STEP
        try:
            yield
        except BaseException as error:
            if model is not None:
                model.fail_step()
            self._tell_replicas(error)
            reason = reason_of_replica(error)
            if reason is not None:
                raise reason from error
            raise
        finally:
            self.moment = Moment.OUTSIDE
            if self._forgets_model:
                self._forgets_model = False
                self.forget_model()

    def begin_model(self) -> Exception | None:
        """The model is made ready for a step.

        Returns: what went wrong on a rank that serves. It is raised after the step: the leader may
            know nothing of it, and would wait for this rank.
        """
        model = state.model
        try:
            if model is not None:
                model.begin_step()
        except Exception as error:
            if self.size == 1:
                raise
            if not self.is_leader:
                return error
            self.runner().refuse(reason_of_replica(error) or error)
            raise
        return None

    def run(self, batch: Batch, habits: Habits) -> Outcome:
        """Runs the microbatches by the schedule; the outcome has their weights.

        Args:
            batch: on the leader.
            habits: of the step function.
        """
        model = state.model
        habit = habits.of(torch.is_grad_enabled(), model is not None and model.training)
        # By its proxy: what no backward pass calls is kept until the next step, the model is not.
        notice = (
            (lambda: model.before_last_backward())
            if model is not None and model.has_replicas
            else None
        )
        with self.in_body(len(batch.bodies)):
            if self.size == 1:
                return self._alone.lead(batch.bodies, notice, batch.weights, habit)
            runner = self.runner()
            if not self.is_leader:
                return runner.serve(self._schedule(self.job.config.microbatches), notice)
            schedule = self._schedule(len(batch.bodies))
            outcome = runner.lead(schedule, batch.bodies, notice, batch.weights, habit)
            self.peak_microbatches = runner.most_under_way
            return outcome

    def end_model(self, had_backward: bool) -> None:
        """Gradients are final when it returns: replicas have averaged theirs."""
        if state.model is not None:
            state.model.end_step(had_backward)

    # --- while a step is under way ---------------------------------------------------------------

    @contextlib.contextmanager
    def in_body(self, num_bodies: int = 1) -> Iterator[None]:
        """In this block user code of a step runs; others of the pipeline do not run it."""
        state.is_in_body = self.size > 1
        state.is_adding_up = self.size > 1 or num_bodies > 1
        try:
            yield
        finally:
            state.is_in_body = state.is_adding_up = False

    @keep_from_compiler
    def backward(
        self,
        tensors: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        factor: float,
        is_of_mean: bool,
    ) -> None:
        """A backward pass of the microbatch under way, or of anything where there is one rank.

        Args:
            factor: of the gradients.
            is_of_mean: in a step they are those of the mean over its microbatches.
        """
        if self.size > 1 and not self.is_in_step:
            raise RuntimeError(
                "model.backward() was called outside of a step; expected a call inside a function"
                " decorated with @smp.step."
            )
        weights = self._weights if is_of_mean and self.is_in_step else None
        runs = self.runner() if self.size > 1 else self._alone
        runs.backward(tensors, gradients, Scale(factor, weights))

    def refuse(self, error: Exception) -> None:
        """Ends a step on the leader before it begins: others learn why, replicas included."""
        model = state.model
        if model is not None and not model.partitioned:

            def fail() -> None:
                raise error

            model.partition(self, fail)
        if self.size > 1:
            self.runner().refuse(error)
        self._tell_replicas(error)

    def _schedule(self, microbatches: int) -> Schedule:
        config = self.job.config
        return schedule_named(
            config.pipeline, microbatches, config.active_microbatches or microbatches
        )

    def _tell_replicas(self, error: BaseException) -> None:
        """The step has failed here; without gradients nobody waits for those of this replica."""
        model = state.model
        if model is not None and model.has_replicas and torch.is_grad_enabled():
            tell_replicas(self.job, error)
            model.end_replicas(said_by(error))

    def close(self) -> None:
        """Says goodbye to the other ranks; they have a moment to end their last step."""
        if self._runner is not None:
            if not self.is_in_step:
                self._runner.part()
            self._runner.close()
            self._runner = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open_channel(self) -> _native.Communicator:
        if self._channel is None:
            group = self.job.cpu_group(GroupKind.PP)

            def exchange(_: str, value: bytes) -> list[bytes]:
                values: list[Any] = [None] * self.size
                dist.all_gather_object(values, value, group=group)
                return values

            members = self.job.members(GroupKind.PP)
            self._channel = _native.Communicator(
                self.rank,
                self.size,
                exchange,
                EngineOptions.from_settings(process_settings()).of_group(members),
                name=f"smp:pipeline {members}",
            )
        return self._channel


_pipeline: Pipeline | None = None


def current_pipeline(what: str) -> Pipeline:
    """The pipeline that this rank is in.

    Args:
        what: who asks, for the message.

    Raises:
        SMPNotInitialized: before `smp.init()`.
    """
    global _pipeline
    job = state.require(what)
    if _pipeline is None or _pipeline.job is not job:
        _pipeline = Pipeline(job)
        state.call_at_reset(_pipeline.close)
    return _pipeline


def is_tracing() -> bool:
    """Whether the step's body runs only to be watched, before the model is partitioned."""
    return _pipeline is not None and _pipeline.moment is Moment.OBSERVING
