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


def test_pauses_grow_up_to_30_seconds() -> None:
    assert [Limits.pause_s(retry) for retry in (1, 2, 3, 6, 30)] == [1, 2, 4, 30, 30]
