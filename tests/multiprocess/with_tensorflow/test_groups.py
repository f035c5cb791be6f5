# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Groups: every operation among some of the ranks, beside others, with few threads.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machine_speed import scaled
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("group_ranks.py", 2 * DEADLINE_S)
# Those whose operations could meet in a wrong order.
ORDERS = [
    "check_other_lists_in_each_group",
    "check_groups_in_another_order_on_each_rank",
    "check_sessions",
    "check_calls_in_another_order",
    "check_swapped_lists_of_gradients",
]

pytestmark = pytest.mark.timeout(2 * DEADLINE_S + 60)


def _require(name: str, ranks: int, threads: int, runs: int, operations: str) -> None:
    CHECKS.require(
        name,
        ranks,
        ORDERS if runs > 2 else None,
        INTER_OP_THREADS=str(threads),
        RUNS=str(runs),
        SMDDP_TF_OPERATIONS=operations,
        SMDDP_BUCKET_CAP_MB="0.00390625",
        SMDDP_TIMEOUT_SECONDS=str(scaled(60.0)),
    )


@pytest.mark.parametrize("name", CHECKS.names)
def test_two_groups_of_two(name: str) -> None:
    _require(name, 4, 1, 2, "kernels")


@pytest.mark.parametrize("name", CHECKS.names)
def test_a_group_of_two_and_one_of_one_by_python_functions(name: str) -> None:
    _require(name, 3, 4, 2, "python")


def test_a_trace_has_the_collectives_of_every_group(tmp_path: Path) -> None:
    ranks = Path(__file__).with_name("group_ranks.py")
    env = {"SMDDP_TRACE": str(tmp_path / "trace.json"), "INTER_OP_THREADS": "1"}
    run_tensorflow_ranks(f"{ranks}:traced", 2, env=env)
    events = json.loads((tmp_path / "trace.1.json").read_text())["traceEvents"]
    groups = [each["args"]["group"] for each in events if each.get("name") == "all_reduce 4 B f32"]
    assert groups == ["default", "default/1.0 of ranks 0, 1"]


@pytest.mark.slow
@pytest.mark.parametrize("operations", ["kernels", "python"])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("name", ORDERS)
def test_orders_many_times(name: str, threads: int, operations: str) -> None:
    _require(name, 4, threads, 30, operations)
