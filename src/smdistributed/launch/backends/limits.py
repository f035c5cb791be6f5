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

__all__ = ["MOST_RETRIES", "Limits", "check_limits"]

MOST_RETRIES = 30
"""Of `max_retry_attempts`."""

_LONGEST_PAUSE_S = 30.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one job.

    Attributes:
        retries: how often it is tried again after an internal failure.
        max_run_s: seconds of training, in all attempts together.
    """

    retries: int
    max_run_s: float

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Limits:
        """Those of a request, `CreateTrainingJob`."""
        return cls(
            retries=request.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0),
            max_run_s=request["StoppingCondition"]["MaxRuntimeInSeconds"],
        )

    @staticmethod
    def pause_s(retry: int) -> float:
        """Seconds before a retry: what made an agent die may need a moment to pass.

        Args:
            retry: its number, from 1.
        """
        return min(2.0 ** (retry - 1), _LONGEST_PAUSE_S)


def check_limits(max_retry_attempts: Any) -> None:
    """Refuses what cannot be.

    Args:
        max_retry_attempts: of an estimator; None: no retries.

    Raises:
        ConfigurationError: (a ValueError) says which argument, and what was expected.
    """
    retries = max_retry_attempts
    if retries is not None and (type(retries) is not int or not 1 <= retries <= MOST_RETRIES):
        raise ConfigurationError(
            f"max_retry_attempts is {retries!r}; expected a whole number from 1 to {MOST_RETRIES}."
            " Leave it out for a job that is not tried again."
        )
