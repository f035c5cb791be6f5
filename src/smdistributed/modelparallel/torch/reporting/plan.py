# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.plan()`: what a pipeline would do, before there is one.

The model is observed and partitioned as the first step would do it, and profiled; the schedule's
rules do the rest. Needs no other process, no launcher and no `smp.init()`.

Source: our choice; docs/pipeline_report.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.report import plans
from smdistributed.modelparallel.report.costs import Profile, Settings, settings_of
from smdistributed.modelparallel.report.document import Report
from smdistributed.modelparallel.report.expectation import expect_of_profile
from smdistributed.modelparallel.report.plans import several
from smdistributed.modelparallel.torch.modules.assignment import (
    Decision,
)
from smdistributed.modelparallel.torch.partitioning import observation
from smdistributed.modelparallel.torch.partitioning.partitioner import find_partition
from smdistributed.modelparallel.torch.pipeline.microbatches import ArgumentSplitter
from smdistributed.modelparallel.torch.reporting.profile import Loss, profile
from smdistributed.modelparallel.torch.reporting.rows import row_of, rows_of

__all__ = ["Plan", "plan"]


@dataclasses.dataclass(frozen=True)
class Plan(plans.Plan):
    """What one model would do on several numbers of ranks. `print` it.

    Attributes:
        reports: one for each number of ranks and of microbatches, in the order that was asked for.
        profiles: by number of microbatches, what one of them costs.
        states_per_parameter: as it was passed to `smp.plan`.
    """

    profiles: Mapping[int, Profile] = dataclasses.field(repr=False)
    states_per_parameter: float = 2.0

    def profile(self, microbatches: int) -> Profile | None:
        """What a microbatch costs, if the plan was made for so many."""
        return self.profiles.get(microbatches)


def plan(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    ranks: int | Sequence[int] = 4,
    microbatches: int | Sequence[int] = 8,
    *,
    loss: Loss | None = None,
    loss_args: tuple[Any, ...] = (),
    config: Mapping[str, Any] | None = None,
    states_per_parameter: float = 2.0,
    non_split_inputs: Iterable[str] = (),
    device: torch.device | str = "cpu",
) -> Plan:
    """What a model would do in a pipeline, on ranks that are not there (ours).

    One microbatch runs forward and backward some seven times in this process, which must have room
    for it. Times are this machine's; their proportions, on which the bubble depends, are much the
    same on others of its kind. Not a collective; the model, its gradients and random numbers stay
    as they were.

    Args:
        module: the whole model, not wrapped, as `smp.DistributedModel` takes it.
        args, kwargs: what it is called with, for a whole batch; cut as `@smp.step` cuts them.
        ranks: of one pipeline, its partitions; or several numbers to compare.
        microbatches: or several numbers to compare.
        loss: called with what the model returns for a microbatch, and `loss_args`; None: the sum
            of it. It runs where what it is called with is made.
        loss_args: for a whole batch: labels.
        config: other parameters of `smp.init()`, such as `{"optimize": "speed"}`; without
            auto_partition, what `smp.set_partition` or a partition file says.
        states_per_parameter: elements that the optimizer keeps for one of a parameter: Adam 2, SGD
            with momentum 1, plain SGD 0.
        non_split_inputs: names of arguments that every microbatch gets whole.
        device: where the microbatch runs.

    Raises:
        ValueError: a batch does not divide; nothing that the model returns has a gradient; ranks
            or microbatches are no positive integers.
        ConfigError: parameters that cannot work together.
        Exception: what the model raises.
    """
    device = torch.device(device)
    splitter = ArgumentSplitter(module.forward, non_split_inputs=non_split_inputs or None)
    profiles: dict[int, Profile] = {}
    observations: dict[int, observation.Observation] = {}
    reports = []
    several_ranks = several("ranks", ranks)
    for count in several("microbatches", microbatches):
        call = splitter.split(args, kwargs or {}, count)[0]
        labels = ArgumentSplitter(_loss_arguments).split(loss_args, {}, count)[0][0]
        profiles[count] = profile(module, *call, loss, labels, device)
        for partitions in several_ranks:
            parsed = Config.parse(
                {
                    **(config or {}),
                    "pipeline_parallel_degree": partitions,
                    "microbatches": count,
                },
                {},
            )
            if count not in observations and parsed.auto_partition and not parsed.load_partition:
                found = observation.observe(module, call[0], call[1], device, is_measured=False)
                observations[count] = found
            decision = find_partition(
                parsed, module, device, functools.partial(observations.get, count)
            )
            reports.append(
                _report(
                    module,
                    decision,
                    settings_of(parsed),
                    profiles[count],
                    states_per_parameter,
                )
            )
    return Plan(tuple(reports), profiles, states_per_parameter)


def _loss_arguments(*args: Any) -> None:
    """What a loss is called with, beside the output."""


def _report(
    module: nn.Module,
    decision: Decision,
    settings: Settings,
    measured: Profile,
    states_per_parameter: float,
) -> Report:
    expected = expect_of_profile(measured, decision.partition_of, settings, states_per_parameter)
    rows = {row.path: row for row in rows_of(module, decision)}
    names = set(rows)
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    for sums, pieces in ((forward, measured.forward), (backward, measured.backward)):
        for path, seconds in pieces:
            row = row_of(path, names)
            sums[row] = sums.get(row, 0.0) + seconds
    order = [*forward, *(path for path in rows if path not in forward)]
    return Report(
        settings=settings,
        rows=tuple(
            dataclasses.replace(
                rows[path],
                forward_s=forward.get(path, 0.0),
                backward_s=backward.get(path, 0.0),
            )
            for path in order
        ),
        expected=expected,
    )
