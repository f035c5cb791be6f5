# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How long a job may take, and how often it may be tried: what its request says.

Source: launch specification, sections 2.1 and 7.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary

__all__ = ["MOST_RETRIES", "OUR_FAILURE", "Limits", "check_limits", "num_retries"]

MOST_RETRIES = 30
"""Of `max_retry_attempts`."""

OUR_FAILURE = "InternalServerError"
"""How failures begin after which a job is tried again."""

_LONGEST_PAUSE_S = 30.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one job.

    Attributes:
        retries: how often it is tried again after an internal failure.
        max_run_s: seconds of training, in all attempts together.
        is_spot: it may be interrupted, and starts again then.
        max_wait_s: seconds from its creation to its end; None: any time.
    """

    retries: int
    max_run_s: float
    is_spot: bool = False
    max_wait_s: float | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Limits:
        """Those of a request, `CreateTrainingJob`."""
        stopping = request["StoppingCondition"]
        is_spot = request.get("EnableManagedSpotTraining") is True
        return cls(
            retries=request.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0),
            max_run_s=stopping["MaxRuntimeInSeconds"],
            is_spot=is_spot,
            max_wait_s=stopping.get("MaxWaitTimeInSeconds") if is_spot else None,
        )

    @staticmethod
    def pause_s(retry: int) -> float:
        """Seconds before a retry: what made an agent die may need a moment to pass.

        Args:
            retry: its number, from 1.
        """
        return min(2.0 ** (retry - 1), _LONGEST_PAUSE_S)


def num_retries(record: JobRecord) -> int:
    """How often a job was tried again after an internal failure; others are interruptions."""
    return sum(
        each.secondary is Secondary.INTERRUPTED and each.message.startswith(OUR_FAILURE)
        for each in record.transitions
    )


def check_limits(
    max_retry_attempts: Any, max_run: Any = None, max_wait: Any = None, is_spot: Any = False
) -> None:
    """Refuses what cannot be.

    Args:
        max_retry_attempts: of an estimator; None: no retries.
        max_run, max_wait: seconds; None: not given.
        is_spot: `use_spot_instances`.

    Raises:
        ConfigurationError: (a ValueError) says which argument, and what was expected.
    """
    retries = max_retry_attempts
    if retries is not None and (type(retries) is not int or not 1 <= retries <= MOST_RETRIES):
        raise ConfigurationError(
            f"max_retry_attempts is {retries!r}; expected a whole number from 1 to {MOST_RETRIES}."
            " Leave it out for a job that is not tried again."
        )
    if type(is_spot) is not bool:
        raise ConfigurationError(f"use_spot_instances is {is_spot!r}; expected True or False.")
    for name, seconds in (("max_run", max_run), ("max_wait", max_wait)):
        if seconds is not None and (type(seconds) is not int or seconds < 1):
            raise ConfigurationError(f"{name} is {seconds!r}; expected a whole number from 1.")
    if is_spot and (max_wait is None or (max_run is not None and max_wait < max_run)):
        raise ConfigurationError(
            f"max_wait is {max_wait!r}, and max_run {max_run!r}; expected with use_spot_instances"
            " that max_wait is at least max_run: it counts the time of waiting too. Set max_wait."
        )
