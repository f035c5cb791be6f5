# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Any sequence of collectives gives what NumPy computes in one process.

Hypothesis draws programs (operations, sizes, dtypes, roots, blocking or not) and shrinks those that
fail. Sizes gather around the bounds where the engine changes its ways.
"""

from __future__ import annotations

import pytest
from harness import run_ranks
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conformance.collectives.random_program import (
    MOVEMENTS,
    REDUCTIONS,
    Step,
    run_program,
)
from tests.conformance.collectives.ranks import TRANSPORTS

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

# Bounds in bytes: the inline payload, one-shot reads, a slot, a block of the staging buffers.
BOUNDS = (0, 24, 1024, 16 << 10, 64 << 10, 256 << 10)

counts = st.one_of(
    st.builds(
        lambda bound, by, element: max(0, (bound + by) // element),
        st.sampled_from(BOUNDS),
        st.integers(-9, 9),
        st.sampled_from([1, 4, 8]),
    ),
    st.integers(0, 3000),
)
steps = st.builds(
    Step,
    collective=st.sampled_from(REDUCTIONS + MOVEMENTS),
    count=counts,
    dtype=st.sampled_from(["float32", "float64", "float16", "int32", "int8", "uint8"]),
    op=st.sampled_from(["SUM", "PRODUCT", "MIN", "MAX"]),
    root=st.integers(0, 7),
    is_async=st.booleans(),
)
programs = st.lists(steps, min_size=1, max_size=25)


def run(program: list[Step], world_size: int, transport: str) -> None:
    run_ranks(run_program, world_size, program, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [2, 3, 5])
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes: see the slow test
    suppress_health_check=list(HealthCheck),
)
@given(program=programs)
def test_programs(program: list[Step], world_size: int, transport: str) -> None:
    run(program, world_size, transport)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("transport", TRANSPORTS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs, world_size=st.sampled_from([2, 3, 5, 8]))
def test_many_programs(program: list[Step], world_size: int, transport: str) -> None:
    run(program, world_size, transport)
