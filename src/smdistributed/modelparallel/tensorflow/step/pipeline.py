# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What all step functions of a job share: the driver, the decision about the model, the checks.

Source: TensorFlow modelparallel specification, sections 3.2 to 3.5.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.messages.step_watch import StepWatch
from smdistributed.modelparallel.tensorflow.containers.arguments import BoundCall
from smdistributed.modelparallel.tensorflow.graph.deciding import Decision
from smdistributed.modelparallel.tensorflow.job.horovod import require_stand_in
from smdistributed.modelparallel.tensorflow.job.state import Job, state
from smdistributed.modelparallel.tensorflow.run.bridge import Bridges
from smdistributed.modelparallel.tensorflow.run.driver import Driver, Telling
from smdistributed.modelparallel.tensorflow.run.gathering import Uses
from smdistributed.modelparallel.tensorflow.run.mailbox import EQUALLY_MANY
from smdistributed.modelparallel.tensorflow.run.members import members_of
from smdistributed.modelparallel.tensorflow.run.program import Program
from smdistributed.modelparallel.tensorflow.step.marks import mark_of
from smdistributed.modelparallel.tensorflow.step.replicas import tell_replicas

__all__ = [
    "CHECK_VARIABLE",
    "Pipeline",
    "WholeProgram",
    "call_with_each_pipeline",
    "current_pipeline",
    "is_partitioned",
    "whole_program",
]

CHECK_VARIABLE = "SMP_CHECK_INPUTS"
"""Set to 0: the ranks of a replica do not compare what they feed."""

_CHECKED_CALLS = 3
_MOST_WARNINGS = 3  # of calls after these


@dataclasses.dataclass(eq=False, kw_only=True)
class WholeProgram(Program):
    """A step as it is called: its one microbatch is the whole batch.

    So batches are cut where a size that does not divide is an error that the other ranks hear of.

    Attributes:
        program: what runs.
        call: how the batch is cut.
        uses: what its results are used for; None: each is used.
    """

    program: Program
    call: BoundCall
    uses: Uses | None = None


def whole_program(program: Program, call: BoundCall, uses: Uses | None = None) -> WholeProgram:
    """Of a program, whose results it gives one microbatch after the other, and then the sums."""
    sums = [] if uses is None else [program.results[each] for each in uses.results]
    return WholeProgram(
        number=program.number,
        name=program.name,
        microbatches=1,
        segments={},
        turns=[],
        arguments=call.whole_specs,
        results=list(program.results) * program.microbatches + sums,
        program=program,
        call=call,
        uses=uses,
    )


class _Fed(NamedTuple):
    """What a rank feeds in a call.

    Attributes:
        shown: paths, dtypes and shapes, in words.
        digest: of the values.
    """

    shown: str
    digest: int


class Pipeline:
    """Of one job, on one rank.

    Attributes:
        job: what this process knows of the others.
        driver: runs programs.
        bridges: from graphs of the user's to the driver.
        decision: where the parts of the model are; None before the first step that calls it.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        channel = job.pipeline_channel
        self.driver = Driver(
            channel.native,
            job.rank_in(GroupKind.PP),
            members_of(channel.topology(), job.members(GroupKind.PP)),
            process_settings().timeout_s,
            process_settings().stall_s,
        )
        self.bridges = Bridges(self)
        self._watch = _watch_of_replicas(job)
        self.decision: Decision | None = None
        self._calls: dict[int, int] = {}
        self._num_warnings = 0
        # What is compared, and what runs then, are of one call: threads may call steps at once.
        self._one_call = threading.Lock()
        self._checks = os.environ.get(CHECK_VARIABLE, "1") != "0" and self.size > 1

    @property
    def rank(self) -> int:
        """In the pipeline: the partition that is here."""
        return self.job.rank_in(GroupKind.PP)

    @property
    def size(self) -> int:
        """Ranks of the pipeline."""
        return self.job.size_of(GroupKind.PP)

    @property
    def failure(self) -> str:
        """Of the driver."""
        return self.driver.failure

    def run(
        self, whole: WholeProgram, pieces: Sequence[Sequence[tf.Tensor]]
    ) -> list[list[tf.Tensor]]:
        """Runs a step; see `Driver.run`. In its first calls the ranks compare what they feed.

        Args:
            pieces: one: the tensors of the whole batch, eager.

        Returns:
            In one list, this rank's results of all microbatches, and the sums.

        Raises:
            ValueError: a size does not divide.
            SMDDPMismatch: the ranks feed tensors of different shapes.
            Exception: as of `Driver.run`.
        """
        (tensors,) = pieces
        self.driver.require_outside(f"runs step {whole.name}")
        with self._one_call, self.telling_of_step():
            rows = self._run(whole, tensors)
        if self._watch is not None:
            self._watch.step_ended()
        return [[tensor for row in rows for tensor in row]]

    def telling(self, until: Callable[[], int] = lambda: 0) -> Telling:
        """While it is open, what is raised here is told: to the pipeline, and to other replicas.

        Args:
            until: when this count has grown, the pipeline is not told; see `Driver.telling`.
        """
        return self.driver.telling(functools.partial(tell_replicas, self.job), until)

    def telling_of_step(self) -> Telling:
        """As `telling`, around one step: when it has ended the pipeline is not told any more."""
        driver = self.driver
        return self.telling(lambda: driver.steps)

    def refuse(self, error: BaseException) -> None:
        """This rank cannot do what comes next: see `Driver.refuse`."""
        self.driver.refuse(error)
        tell_replicas(self.job, error)

    def _run(self, whole: WholeProgram, tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        program = whole.program
        pieces = whole.call.cut(tensors)
        calls = self._calls.get(program.number, 0)
        if self._checks and calls < _CHECKED_CALLS:
            self._compare(whole, tensors)
            return self.driver.run(program, pieces, uses=whole.uses)
        mark = mark_of(tensors) if self._checks else 0
        rows = self.driver.run(program, pieces, mark, whole.uses)
        if self.driver.otherwise and self._num_warnings < _MOST_WARNINGS:
            self._num_warnings += 1
            ranks = self.job.members(GroupKind.PP)
            self._warn(whole.name, [ranks[each] for each in sorted(self.driver.otherwise)])
        return rows

    def _compare(self, whole: WholeProgram, tensors: Sequence[tf.Tensor]) -> None:
        digest = 0
        for tensor in tensors:
            digest = _checksum(tensor, digest)
        shown = ", ".join(whole.call.describe(tensors))
        does = f"compares the arguments of step {whole.name}"
        brought: list[_Fed] = self.driver.agree(does, _Fed(shown, digest))
        self._calls[whole.number] = self._calls.get(whole.number, 0) + 1  # on all ranks alike
        ranks = self.job.members(GroupKind.PP)
        for rank, theirs in zip(ranks, brought, strict=True):
            if theirs.shown != brought[0].shown:
                raise SMDDPMismatch(
                    f"step {whole.name}: rank {ranks[0]} calls it with {brought[0].shown}, and"
                    f" rank {rank} with {theirs.shown}; expected the same on all ranks of a"
                    " replica. Feed them the same batches: the same files in the same order,"
                    " shuffled with seed=smp.dp_rank(), with drop_remainder=True."
                )
        others = [rank for rank, each in zip(ranks, brought, strict=True) if each != brought[0]]
        if others and self.rank == 0:
            self._warn(whole.name, others)

    def _warn(self, name: str, others: Sequence[int]) -> None:
        get_logger().warning(
            "step %s: ranks %d and %s are of one replica, and feed different batches; expected"
            " the same on all ranks of a replica, or losses and gradients fit nothing. Shuffle"
            " with Dataset.shuffle(..., seed=smp.dp_rank()) after tf.keras.utils"
            ".set_random_seed(...), and read files in the same (sorted) order. A rank that skips a"
            " batch after an error makes it so, too. %s=0 switches this check off.",
            name,
            self.job.members(GroupKind.PP)[0],
            ", ".join(map(str, others)),
            CHECK_VARIABLE,
        )

    def interrupt(self, reason: str) -> bool:
        """Ends what is under way; see `Driver.interrupt`."""
        return self.driver.interrupt(reason)

    def close(self) -> None:
        """Ends what belongs to it; graphs that call steps fail from now on."""
        self.bridges.close()
        if self._watch is not None:
            self._watch.close()


def _watch_of_replicas(job: Job) -> StepWatch | None:
    """On the first rank of each of several pipelines; their other ranks run the same steps."""
    stall_s = process_settings().stall_s
    if stall_s == 0 or job.size_of(GroupKind.DP) == 1 or job.rank_in(GroupKind.PP) != 0:
        return None
    channel = job.communicators[GroupKind.DP]
    rows = zip(job.members(GroupKind.DP), channel.topology(), strict=True)
    names = [f"rank {rank} (host {row['host']}, pid {row['pid']})" for rank, row in rows]
    watch = StepWatch(channel.native, job.rank_in(GroupKind.DP), names, stall_s, EQUALLY_MANY)
    watch.start()
    return watch


def _checksum(tensor: Any, before: int) -> int:
    if tensor.dtype in (tf.resource, tf.variant):
        return before
    if tensor.dtype == tf.string:
        return zlib.crc32(tf.io.serialize_tensor(tensor).numpy(), before)
    return zlib.crc32(tensor.numpy().tobytes(), before)


_pipelines: dict[int, Pipeline] = {}
_making = threading.RLock()  # threads may call their first step at once
_when_made: list[Callable[[Pipeline], None]] = []


def call_with_each_pipeline(callback: Callable[[Pipeline], None]) -> None:
    """Lets a function have each pipeline when it is made, before its first step."""
    _when_made.append(callback)


def current_pipeline(caller: str) -> Pipeline:
    """Of the job that this process is in.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        ConfigError: Horovod itself has been imported.
    """
    job = state.require(caller)
    found = _pipelines.get(id(job))
    return _made(job) if found is None else found


def _made(job: Job) -> Pipeline:
    """Of a job, unless another thread has made it."""
    with _making:
        found = _pipelines.get(id(job))
        if found is not None:
            return found
        require_stand_in()  # the script may have imported another one since smp.init()
        found = Pipeline(job)
        _pipelines[id(job)] = found

        def leave() -> None:
            _pipelines.pop(id(job)).close()

        state.call_at_reset(leave)
        for callback in _when_made:
            callback(found)
        return found


def is_partitioned() -> bool:
    """Whether it is decided in this job where the parts of the model are."""
    found = _pipelines.get(id(state.job)) if state.initialized else None
    return found is not None and found.decision is not None
