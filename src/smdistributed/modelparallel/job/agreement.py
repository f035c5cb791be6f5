# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smp.init()` compares between ranks, and what it says.

Source: modelparallel specification, sections 1.1 and 4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.job.state import BaseJob

__all__ = ["check_equal", "comparable", "say", "tell", "tell_of_another_call"]

# Parameters that a rank may have to itself.
_OF_EACH_RANK = frozenset(("partition_file",))


def comparable(config: Config) -> dict[str, str]:
    """The parameters that must be the same on all ranks, as texts; for `check_equal`."""
    return {
        field.name: repr(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.name not in ("unknown", "notices", *_OF_EACH_RANK)
    }


def check_equal(parameters: Sequence[Mapping[str, str]]) -> None:
    """Raises a ConfigError, the same on all ranks, if parameters differ; they come by rank."""
    first = parameters[0]
    for rank, theirs in enumerate(parameters):
        for key, value in first.items():
            if theirs.get(key) != value:
                raise ConfigError(
                    f"{key} is {theirs.get(key)} on rank {rank}, and {value} on rank 0; expected"
                    " the same on all ranks. Pass the same parameters to smp.init() everywhere,"
                    " and look at SM_HP_MP_PARAMETERS in the environment of both."
                )


def tell(job: BaseJob) -> None:
    """Logs the parameters, and what the user should know about them."""
    if job.rank == 0:
        get_logger().info("Configuration parameters:")
        for line in job.config.describe():
            get_logger().info("  %s", line)
    for notice in job.config.notices:
        say(job.rank, "%s", notice)
    members = {kind.name: list(job.members(kind)) for kind in GroupKind}
    get_logger().debug("rank %d of %d: %s", job.rank, job.size, members)


def tell_of_another_call(rank: int, config: Any, advice: str) -> None:
    """Warns that `smp.init()` was called again.

    Args:
        rank: of this process.
        config: what it was given, whatever that is.
        advice: what to do; a sentence that goes on after a colon.
    """
    say(
        rank,
        "smp.init() was called again: initialized already, ignoring this call%s. The first one"
        " counts: %s",
        f" and its configuration {config!r}" if config else "",
        advice,
    )


def say(rank: int, text: str, *arguments: object) -> None:
    """A warning, once for the job: all ranks find the same."""
    (get_logger().warning if rank == 0 else get_logger().debug)(text, *arguments)
