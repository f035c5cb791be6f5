# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How the model gets its partition: from a file, by hand, or by what an observed run has shown.

One rank, the leader of the first pipeline, finds the decision and tells all others; no rank finds
one by itself. So the pipelines cannot differ, and a file is needed on one host only.

Source: modelparallel specification, sections 1.2 (`load_partition`, `partition_file`), 3.7, 3.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.partition_file import read_partition, write_partition
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.assignment import (
    Decision,
    assign_by_hand,
    check_shared,
    module_paths,
)
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.partitioning import observation

__all__ = ["agree_on_partition", "find_partition", "in_one_partition", "log_placement"]

Watch = Callable[[], observation.Observation | None]
"""Runs the step's body on the first microbatch until the model's first call has been watched."""


class _Answer(NamedTuple):
    """What the deciding rank tells all others: the decision, or why there is none."""

    decision: Decision | None
    failure: str | None


def in_one_partition(model: nn.Module) -> Decision:
    """Of a model that is not cut."""
    paths = module_paths(model).values()
    return Decision(dict.fromkeys(paths, 0), dict.fromkeys(paths, "there is one partition"))


def agree_on_partition(
    job: Job, model: nn.Module, watch: Watch | None, fixed: Decision | None = None
) -> Decision:
    """The decision, on all ranks the same; a collective of them, blocking.

    With `load_partition` it is read from `partition_file`; otherwise it is found, and written there
    if a file is named. The name that rank 0 has been given counts.

    Args:
        job: what this process knows of the others.
        model: the user's module, as every rank has built it.
        watch: of the leader; None elsewhere.
        fixed: a decision that was made before, and goes before all others.

    Raises:
        ConfigError: on the deciding rank: the file does not fit, or modules that share are in
            different partitions.
        OSError: there: the file cannot be read or written.
        Exception: there: what the step's body raised.
        StepAborted: on the others, when it could not decide; says why.
    """
    decider = job.topology.members(GroupKind.PP, 0)[0]
    answer: _Answer | None = None
    if job.rank == decider:
        try:
            answer = _Answer(_decide(job, model, watch, fixed), None)
        except Exception as error:
            _told(job, _Answer(None, f"{type(error).__name__}: {error}"), decider)
            raise
    answer = _told(job, answer, decider)
    if answer.failure is not None:
        raise StepAborted(
            f"the model was not partitioned, as rank {decider} could not decide how:"
            f" {answer.failure.rstrip('.')}. Read the log of rank {decider}."
        )
    assert isinstance(answer.decision, Decision)
    return answer.decision


def log_placement(job: Job, placement: Placement) -> None:
    """Writes to the log where the modules are, on rank 0, and what is here."""
    if job.rank == 0:
        get_logger().info("Partition assignments:")
        for line in placement.decision.lines():
            get_logger().info("  %s", line)
    parameters = [parameter for _, parameter in placement.local_parameters()]
    get_logger().info(
        "Number of parameters on partition %d are %d. %d require grads",
        placement.pp_rank,
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )
    if not parameters and job.has_pipeline and job.rank_in(GroupKind.DP) == 0:
        get_logger().warning(
            "Partition %d has no parameters, so its rank computes nothing; expected some on each of"
            " %d partitions. Start with fewer, or put modules there: smp.set_partition(module, %d)."
            " The report says why they are where they are (smp.report).",
            placement.pp_rank,
            job.config.partitions,
            placement.pp_rank,
        )
    get_logger().info("Finished partitioning the model")


def _told(job: Job, answer: _Answer | None, source: int) -> _Answer:
    """The answer of one rank, on all of them; others than that rank have none to give."""
    message: list[Any] = [answer]
    dist.broadcast_object_list(message, source, group=job.cpu_group(GroupKind.WORLD))
    told: _Answer = message[0]
    return told


def _decide(job: Job, model: nn.Module, watch: Watch | None, fixed: Decision | None) -> Decision:
    config = job.config
    path = config.partition_file
    decision = find_partition(config, model, job.device, watch) if fixed is None else fixed
    if path and not config.load_partition:
        write_partition(path, decision.partition_of, config.partitions)
        get_logger().info("Wrote the partition to %s", path)
    return decision


def find_partition(
    config: Config, model: nn.Module, device: torch.device, watch: Watch | None
) -> Decision:
    """From the file, by cost or by hand, as the configuration says. Not collective.

    Args:
        device: where the model will be.
        watch: as of `agree_on_partition`.

    Raises:
        ConfigError: the file does not fit, or modules that share are in different partitions.
        OSError: the file cannot be read.
    """
    if config.load_partition:
        assert config.partition_file  # the configuration was checked
        return _loaded(model, config.partition_file, config.partitions)
    if config.auto_partition:
        return _by_cost(config, model, device, watch)
    assert config.default_partition is not None
    return assign_by_hand(model, config.default_partition)


def _loaded(model: nn.Module, path: str, partitions: int) -> Decision:
    paths = module_paths(model)
    partition_of = read_partition(path, list(paths.values()), partitions)
    check_shared(paths, partition_of)  # somebody may have edited it
    get_logger().info("Read the partition from %s", path)
    return Decision(partition_of, dict.fromkeys(partition_of, f"as {path} says"))


def _by_cost(
    config: Config, model: nn.Module, device: torch.device, watch: Watch | None
) -> Decision:
    found = None if config.skip_tracing or watch is None else watch()
    if found is None:
        found = observation.unobserved(model, device)
    active = config.active_microbatches or config.microbatches
    assignment = observation.decide(
        found, config.partitions, config.memory_weight, min(active, config.microbatches)
    )
    return Decision(
        dict(assignment.partition_of),
        dict(assignment.reasons),
        dict(assignment.shares),
        assignment.loads,
    )
