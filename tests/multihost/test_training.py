# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training on two hosts with two ranks each is training on one process with the joined batch.

The training, the comparison and its tolerance are those of the conformance suite.

Source: dataparallel specification, section 12, point 2.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.dataparallel.test_equivalence import (
    WRAPPERS,
    data,  # noqa: F401 (a fixture)
    train_both_ways,
)
from tests.multihost.hosts import Host
from tests.multihost.placement import run_ranks_on

DEADLINE_S = 240.0
pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(
    ("wrapper", "options", "accumulate", "layout"),
    [
        *((wrapper, {}, 1, (2, 2)) for wrapper in WRAPPERS),
        ("torch_ddp", {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}, 3, (2, 1)),
    ],
)
def test_equal_to_one_process(
    wrapper: str,
    options: dict[str, Any],
    accumulate: int,
    layout: tuple[int, ...],
    four_hosts: list[Host],
    data: str,  # noqa: F811
) -> None:
    run_ranks_on(
        four_hosts,
        layout,
        train_both_ways,
        wrapper,
        options,
        accumulate,
        data,
        deadline_s=DEADLINE_S,
    )
