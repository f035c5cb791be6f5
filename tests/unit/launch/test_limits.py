# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How often a job may be tried, and how long it may take."""

from __future__ import annotations

from typing import Any

import pytest

from smdistributed.launch.backends.limits import Limits, check_limits


@pytest.mark.parametrize("retries", [None, 1, 30])
def test_numbers_of_retries(retries: int | None) -> None:
    """Section 2.1: `max_retry_attempts` is 1 to 30 retries after internal failures."""
    check_limits(retries)


@pytest.mark.parametrize("retries", [0, 31, -1, 1.0, "3", True])
def test_numbers_of_retries_that_cannot_be(retries: Any) -> None:
    with pytest.raises(ValueError, match=r"max_retry_attempts is .* from 1 to 30"):
        check_limits(retries)


def test_a_request_without_retries_has_none() -> None:
    request = {"StoppingCondition": {"MaxRuntimeInSeconds": 7}}
    assert Limits.of(request) == Limits(retries=0, max_run_s=7)
    assert Limits.of({**request, "RetryStrategy": {"MaximumRetryAttempts": 3}}).retries == 3


@pytest.mark.parametrize("wait", [10, 11, 86400])
def test_spot_instances_may_wait_at_least_as_long_as_they_run(wait: int) -> None:
    """Section 7.4: `max_wait` is at least `max_run`."""
    check_limits(None, max_run=10, max_wait=wait, is_spot=True)


@pytest.mark.parametrize(
    ("wait", "is_spot", "text"),
    [
        (9, True, "max_wait is 9, and max_run 10; expected .* at least max_run"),
        (None, True, "max_wait is None"),
        (0, False, "max_wait is 0; expected a whole number"),
        (10.0, True, r"max_wait is 10\.0; expected a whole number"),
        (10, "yes", "use_spot_instances is 'yes'; expected True or False"),
    ],
)
def test_times_of_waiting_that_cannot_be(wait: Any, is_spot: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_limits(None, max_run=10, max_wait=wait, is_spot=is_spot)


def test_time_of_waiting_counts_for_spot_instances_only() -> None:
    stopping = {"MaxRuntimeInSeconds": 7, "MaxWaitTimeInSeconds": 9}
    request = {"StoppingCondition": stopping, "EnableManagedSpotTraining": True}
    assert Limits.of(request) == Limits(0, 7, is_spot=True, max_wait_s=9)
    assert Limits.of({"StoppingCondition": stopping}) == Limits(0, 7)


def test_pauses_grow_up_to_30_seconds() -> None:
    assert [Limits.pause_s(retry) for retry in (1, 2, 3, 6, 30)] == [1, 2, 4, 30, 30]
