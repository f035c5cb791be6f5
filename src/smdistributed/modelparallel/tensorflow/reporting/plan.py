# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.plan()`: what a pipeline would do, before there is one.

A step is traced and cut as its first call would do it on so many ranks; the parts of all ranks run
in this process, and are timed. The order in which ranks would run them does the rest.

Source: our choice; docs/pipeline_report.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.report.costs import settings_of
from smdistributed.modelparallel.report.document import Report
from smdistributed.modelparallel.report.plans import Plan, several
from smdistributed.modelparallel.report.programs import (
    expect_of_programs,
    names_of_segments,
    rows_of_segments,
)
from smdistributed.modelparallel.tensorflow.containers.arguments import BoundCall
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.reporting.alone import measure
from smdistributed.modelparallel.tensorflow.reporting.records import program_record
from smdistributed.modelparallel.tensorflow.step.planning import planned_programs
from smdistributed.modelparallel.tensorflow.step.step_function import StepFunction

__all__ = ["plan"]

# Of the job's parameters, those that hold for the pipeline that is planned.
_KEPT = ("auto_partition", "contiguous", "default_partition", "memory_weight", "pipeline")


def plan(
    step: StepFunction,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    ranks: int | Sequence[int] = 4,
    microbatches: int | Sequence[int] = 8,
    *,
    config: Mapping[str, Any] | None = None,
) -> Plan:
    """What a step would do in a pipeline, on ranks that are not there (ours).

    In one process, of a job with one partition, after its first step: the whole model is here then.
    For each number of ranks and microbatches the step is traced for each rank, as its first call
    would do it, and runs some times. Variables stay as they were; random numbers of operations that
    keep a state of their own go on. Times are this machine's; their proportions, on which the
    bubble depends, are much the same on others of its kind.

    Args:
        step: a function with `@smp.step` that calls the model.
        args, kwargs: what it is called with, for a whole batch.
        ranks: of one pipeline, its partitions; or several numbers to compare.
        microbatches: or several numbers to compare.
        config: parameters of `smp.init()`, such as `{"optimize": "speed"}`; those that it does not
            name are the job's.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        RuntimeError: before the first step; the job has several partitions.
        TypeError: `step` is no step function.
        ValueError: a batch does not divide; the step does not call the model, or cannot be cut so;
            ranks or microbatches are no positive integers.
        ConfigError: parameters that cannot work together.
        Exception: what the step raises.
    """
    job = state.require("smp.plan()")
    if not isinstance(step, StepFunction):
        raise TypeError(
            f"smp.plan() got {type(step).__name__}; expected a function with @smp.step. Write"
            " smp.plan(train_step, (images, labels), ranks=[2, 4])."
        )
    if job.has_pipeline:
        raise RuntimeError(
            f"smp.plan() was called in a job of {job.config.partitions} partitions; expected one,"
            " where the whole model is in one process. Run the script in one process with"
            ' {"partitions": 1}; what these ranks did, smp.report() says.'
        )
    if state.model is None or not state.model._smp_has_values():
        raise RuntimeError(
            "smp.plan() was called before the first step; expected it after one, as until then"
            " variables have no values. Call the step function once before."
        )
    several_ranks = several("ranks", ranks)
    reports = []
    for count in several("microbatches", microbatches):
        name, body, call = step.bound(args, dict(kwargs or {}), count)
        for partitions in several_ranks:
            chosen = {key: getattr(job.config, key) for key in _KEPT}
            if config and "optimize" in config:
                del chosen["memory_weight"]
            given = {**chosen, **(config or {}), "partitions": partitions, "microbatches": count}
            parsed = Config.parse(given, {}, "tensorflow")
            reports.append(_report(name, body, call, parsed))
    return Plan(tuple(reports))


def _report(name: str, body: Any, call: BoundCall, config: Config) -> Report:
    programs = planned_programs(name, body, call, config)
    seconds, sizes = measure(programs, call.cut(call.tensors))
    described = [program_record(program, sizes) for program in programs]
    settings = settings_of(config)
    return Report(
        settings=settings,
        rows=rows_of_segments(described, seconds),
        expected=expect_of_programs(described, seconds, settings),
        names=names_of_segments(described),
    )
