# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of balanced fusion buffers, one test for each row of their table.

The planner itself is tested in `tests/unit/dataparallel/test_fusion.py`, the limits of
`bucket_cap_mb` (section 6.2) there and in `test_legacy_ddp.py`, compression (section 6.4) in
`tests/conformance/dataparallel/test_compression.py`.

Source: dataparallel specification, section 6.1.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from harness import run_ranks

from smdistributed._common.settings import Settings
from smdistributed.dataparallel.fusion import BucketPlan, TensorSpec, parse_bucket_cap, plan_buckets
from tests.conformance.dataparallel.legacy_ddp_ranks import bucket_order

MIB = 1024 * 1024


def plan(*sizes: int, cap: int = 25 * MIB, shares: int = 8) -> tuple[BucketPlan, ...]:
    return plan_buckets([TensorSpec(f"t{i}", n, "f4") for i, n in enumerate(sizes)], cap, shares)


def members(buckets: tuple[BucketPlan, ...]) -> list[list[int]]:
    return [[p.index for p in bucket.slots] for bucket in buckets]


@functools.cache
def found() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = run_ranks(bucket_order, 2, deadline_s=110)
    return result


def test_the_default_threshold_is_25_mib() -> None:
    assert Settings.from_environ({}).bucket_cap_bytes == 26214400
    assert [ranks["default cap"] for ranks in found()] == [26214400, 26214400]


def test_values_are_in_mib() -> None:
    assert parse_bucket_cap(25, 0) == 25 * 1024 * 1024 == 26214400


def test_the_default_threshold_can_be_set_in_the_environment() -> None:
    assert Settings.from_environ({"SMDDP_BUCKET_CAP_MB": "0.5"}).bucket_cap_bytes == MIB // 2


def test_a_buffer_closes_after_the_tensor_that_reaches_the_threshold() -> None:
    assert members(plan(10 * MIB, 10 * MIB, 5 * MIB, MIB)) == [[0, 1, 2], [3]]
    assert members(plan(10 * MIB, 10 * MIB, 5 * MIB - 128, MIB)) == [[0, 1, 2, 3]]
    assert members(plan(24 * MIB, 24 * MIB, MIB)) == [[0, 1], [2]]


def test_a_tensor_larger_than_the_threshold_travels_alone() -> None:
    assert members(plan(25 * MIB + 4)) == [[0]]
    assert members(plan(MIB, 26 * MIB, MIB)) == [[1], [0, 2]]


def test_the_tail_is_flushed_with_the_last_gradient() -> None:
    assert members(plan(4, 4, 4)) == [[0, 1, 2]]


@pytest.mark.parametrize("shares", [1, 2, 3, 8, 100])
def test_shares_are_equal_and_the_capacity_is_padded_for_them(shares: int) -> None:
    for bucket in plan(1, 1000, 26 * MIB + 3, 129, shares=shares):
        assert bucket.capacity_bytes % (shares * 128) == 0


def test_offsets_and_capacity_are_multiples_of_128_bytes() -> None:
    (bucket,) = plan(1, 127, 128, 129, 5)
    assert [p.offset for p in bucket.slots] == [0, 128, 256, 384, 640]
    assert bucket.capacity_bytes % 128 == 0


def test_one_dtype_per_buffer() -> None:
    for ranks in found():
        assert ranks["dtypes"].count("torch.float16") == 1
        assert ["short"] in ranks["buckets"]


def test_one_device_per_buffer() -> None:
    specs = [TensorSpec(f"t{i}", 4, "f4", f"cuda:{i % 2}") for i in range(4)]
    assert sorted(members(plan_buckets(specs, MIB, 8))) == [[0, 2], [1, 3]]


def test_the_order_is_that_of_parameters_reversed_and_the_same_on_all_ranks() -> None:
    orders = [ranks["buckets"] for ranks in found()]
    assert orders[0] == orders[1]
    layers = [name for bucket in orders[0] for name in bucket if name != "short"]
    assert layers == ["third.weight", "second.weight", "first.weight"]


def test_same_bits_on_all_ranks_run_to_run_and_for_any_buffer_size() -> None:
    first = found()[0]["bits"][0]
    assert all(bits == first for ranks in found() for bits in ranks["bits"])


def test_gradients_are_views_into_the_buffers() -> None:
    assert [ranks["views"] for ranks in found()] == [True, True]


def test_buffers_are_reduced_while_backward_goes_on_and_backward_waits_for_all() -> None:
    for ranks in found():
        (launched,) = ranks["launched while backward goes on"]
        assert launched >= 1
        assert ranks["under way after backward"] == 0
