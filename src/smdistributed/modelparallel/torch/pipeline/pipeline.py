# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks that share a model's replica: the channel between them, and the step they are in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.settings import process_settings
from smdistributed.collectives import _native
from smdistributed.modelparallel.decide.schedules import schedule_named
from smdistributed.modelparallel.decide.schedules.schedule import Schedule
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.pipeline.executor import Executor
from smdistributed.modelparallel.torch.pipeline.habits import Habit
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred
from smdistributed.modelparallel.torch.recompute.elsewhere import Elsewhere
from smdistributed.modelparallel.torch.replicas.failures import reason_of_replica, tell_replicas

__all__ = ["Pipeline", "current_pipeline", "is_tracing"]


class Pipeline:
    """Of one rank; made at its first step.

    Attributes:
        is_in_step: user code of a step runs.
        is_tracing: it is the one that the partition is decided from.
        elsewhere: by partition, what runs checkpointed modules for others.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rank = job.rank_in(GroupKind.PP)
        self.size = job.size_of(GroupKind.PP)
        self.is_in_step = False
        self.is_tracing = False
        self.elsewhere: list[Elsewhere] = []
        self._channel: _native.Communicator | None = None
        self._executor: Executor | None = None
        self.peak_microbatches = 0
        # Of a step of one rank alone, as in the executor.
        self._arm: Callable[[], None] | None = None
        self._habit = Habit()
        self._forgets_model = False
        self._had_backward = False
        self._number = self._num_backwards = 0
        self._weights: Sequence[float] = ()

    @property
    def is_leader(self) -> bool:
        """Whether the step's body runs here."""
        return self.rank == 0

    def place(self, placement: Placement | None) -> None:
        """From now on modules run where they have been placed; a collective of the pipeline."""
        if self._executor is not None:
            self._executor.close()
        modules, paths, owners = (
            (placement.modules, placement.paths, placement.owners) if placement else ([], [], {})
        )
        self.elsewhere = [Elsewhere(modules, owners, self.job.device) for _ in range(self.size)]
        self._executor = Executor(
            self.rank,
            self.size,
            self._open_channel(),
            [*modules, *self.elsewhere],
            [*paths, *(f"checkpointed modules of partition {r}" for r in range(self.size))],
            {**owners, **{each: place for place, each in enumerate(self.elsewhere)}},
            self.job.device,
            process_settings().timeout_s,
            self._executor,
        )

    def forget_model(self) -> None:
        """Lets go of its modules, after the step if one runs. Not collective."""
        if self.is_in_step:
            self._forgets_model = True
        elif self._executor is not None:
            self.place(None)  # its channel is open

    @contextlib.contextmanager
    def in_body(self) -> Iterator[None]:
        """In this block user code of a step runs; others of the pipeline do not run it."""
        state.is_in_body = self.size > 1
        try:
            yield
        finally:
            state.is_in_body = False

    def executor(self) -> Executor:
        """What runs steps; without a model there are no modules in it."""
        if self._executor is None:
            self.place(None)
        assert self._executor is not None
        return self._executor

    def schedule(self, microbatches: int) -> Schedule:
        """Of a step that has so many."""
        config = self.job.config
        bound = config.active_microbatches or microbatches
        return schedule_named(config.pipeline, microbatches, bound)

    # --- steps -----------------------------------------------------------------------------------

    def step(
        self,
        bodies: Sequence[Callable[[], Any]],
        weights: Sequence[float] | None,
        habit: Habit,
    ) -> tuple[list[Any], Sequence[float] | None]:
        """Runs a step; a collective of the pipeline, and of all ranks the first time.

        Args:
            bodies: by microbatch, on the leader; nothing elsewhere.
            weights: of the microbatches in a mean over the batch; None: all the same.
            habit: of the step function.

        Returns: what they return, and the weights; on all ranks.
        """
        model = state.model
        if model is not None and not model.partitioned:
            model.partition(self, bodies[0] if bodies else None)
        # By its proxy: what no backward pass calls is kept until the next step, the model is not.
        arms = (
            (lambda: model.before_last_backward())
            if model is not None and model.has_replicas
            else None
        )
        self._weights = weights or [1.0 / max(1, len(bodies))] * len(bodies)
        self.is_in_step = True
        try:
            late = self._begin_step()
            with self.in_body():
                results, weights, had_backward = self._run(bodies, weights, arms, habit)
            if late is not None:
                raise late
            if model is not None:
                model.end_step(had_backward)
        except BaseException as error:
            if model is not None:
                model.fail_step()
            self._tell_replicas(error)
            reason = reason_of_replica(error)
            if reason is not None:
                raise reason from error
            raise
        finally:
            self.is_in_step = False
            if self._forgets_model:
                self._forgets_model = False
                self.forget_model()
        return results, weights

    @property
    def weight(self) -> float:
        """Of the microbatch whose body runs now, in a mean over the batch; outside of a step 1."""
        if not self.is_in_step:
            return 1.0
        return self._weights[self.executor().microbatch if self.size > 1 else self._number]

    def _begin_step(self) -> Exception | None:
        """Before the microbatches.

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
            self.executor().refuse(reason_of_replica(error) or error)
            raise
        return None

    def refuse(self, error: Exception) -> None:
        """Ends a step on the leader before it begins: others learn why, replicas included."""
        model = state.model
        if model is not None and not model.partitioned:

            def fail() -> None:
                raise error

            model.partition(self, fail)
        if self.size > 1:
            self.executor().refuse(error)
        self._tell_replicas(error)

    def backward(
        self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], scale: float
    ) -> None:
        """A backward pass of the microbatch under way, or of anything where there is one rank."""
        if self.size > 1 and not self.is_in_step:
            raise RuntimeError(
                "model.backward() was called outside of a step; expected a call inside a function"
                " decorated with @smp.step."
            )
        scaled = [_scaled(*pair, scale) for pair in zip(tensors, gradients, strict=True)]
        if self.size > 1:
            self.executor().backward(tensors, scaled)
            return
        self._had_backward = True
        is_last = self._number == len(self._weights) - 1
        if self._arm is not None and is_last and self._habit.goes_back_once:
            self._arm()
        self._num_backwards += 1
        torch.autograd.backward(list(tensors), scaled)

    def _run(
        self,
        bodies: Sequence[Callable[[], Any]],
        weights: Sequence[float] | None,
        arm: Callable[[], None] | None,
        habit: Habit,
    ) -> tuple[list[Any], Sequence[float] | None, bool]:
        if self.size == 1:
            results, had_backward = self._run_alone(bodies, arm, habit)
            return results, weights, had_backward
        executor = self.executor()
        if self.is_leader:
            results = executor.lead(self.schedule(len(bodies)), bodies, arm, weights, habit)
            self.peak_microbatches = executor.peak_microbatches
        else:
            results = executor.serve(self.schedule(self.job.config.microbatches), arm)
        return results, executor.note, executor.had_backward

    def _run_alone(
        self, bodies: Sequence[Callable[[], Any]], arm: Callable[[], None] | None, habit: Habit
    ) -> tuple[list[Any], bool]:
        self._arm = arm
        self._habit = habit
        self._had_backward = False
        results = []
        for number, body in enumerate(bodies):
            self._number = number
            self._num_backwards = 0
            results.append(body())
            habit.note_backwards(self._num_backwards)
        self._arm = None
        return results, self._had_backward

    def _tell_replicas(self, error: BaseException) -> None:
        """The step has failed here; without gradients nobody waits for those of this replica."""
        model = state.model
        if model is not None and model.has_replicas and torch.is_grad_enabled():
            tell_replicas(self.job, error)

    def close(self) -> None:
        """Says goodbye to the other ranks; they have a moment to end their last step."""
        if self._executor is not None:
            if not self.is_in_step:
                self._executor.part()
            self._executor.close()
            self._executor = None
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

            self._channel = _native.Communicator(
                self.rank,
                self.size,
                exchange,
                EngineOptions.from_settings(process_settings()),
                name=f"smp:pipeline {self.job.members(GroupKind.PP)}",
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
    return _pipeline is not None and _pipeline.is_tracing


def _scaled(root: Tensor, gradient: Tensor | None, scale: float) -> Tensor | None:
    if scale == 1.0:
        return gradient
    if gradient is not None:
        return gradient * scale
    if isinstance(root, Deferred) and root.is_pending:
        return torch.full((), scale)  # of a tensor of one element, or its owner refuses it
    return torch.full_like(root, scale) if root.numel() == 1 else None  # torch refuses the other
