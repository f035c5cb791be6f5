# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What messages, works, groups and arrays promise.

The statements are the names and docstrings in group_checks.py.

Source: the docstrings of `Communicator` and `Work`.
"""

from __future__ import annotations

import pytest
from harness import run_ranks

from tests.conformance.collectives.group_checks import CHECKS, run_check
from tests.conformance.collectives.ranks import TRANSPORTS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("statement", CHECKS)
def test_three_ranks(statement: str, transport: str) -> None:
    run_ranks(run_check, 3, statement, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize(
    "statement",
    [
        "a_receive_from_anyone_names_its_source",
        "split_makes_groups_by_color_ordered_by_key",
        "groups_work_at_the_same_time_from_several_threads",
    ],
)
def test_eight_ranks(statement: str) -> None:
    run_ranks(run_check, 8, statement)
