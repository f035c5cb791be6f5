# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The bucket planner: tables first, then what holds for any list of tensors."""

from __future__ import annotations

import fractions
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.fusion import (
    BucketPlan,
    TensorSpec,
    parse_bucket_cap,
    plan_buckets,
)

MIB = 1024 * 1024


def specs(*sizes: int, dtype: str = "float32") -> list[TensorSpec]:
    return [TensorSpec(f"t{i}", size, dtype) for i, size in enumerate(sizes)]


def shape(buckets: tuple[BucketPlan, ...]) -> list[tuple[list[tuple[int, int]], int, int]]:
    """Per bucket ([(index, offset), ...], used, capacity)."""
    return [
        ([(p.index, p.offset) for p in b.slots], b.used_bytes, b.capacity_bytes) for b in buckets
    ]


# Sizes, cap, shares -> buckets. The first is the picture in the module's text.
TABLE: dict[str, tuple[list[int], int, int, Any]] = {
    "the picture": (
        [500, 300, 400, 2000, 64],
        1024,
        2,
        [
            ([(0, 0), (1, 512), (2, 896)], 1296, 1536),
            ([(3, 0)], 2000, 2048),
            ([(4, 0)], 64, 256),
        ],
    ),
    "nothing": ([], 1024, 2, []),
    "closed at exactly the cap": (
        [512, 512, 128],
        1024,
        1,
        [([(0, 0), (1, 512)], 1024, 1024), ([(2, 0)], 128, 128)],
    ),
    "open one byte below": (
        [512, 511, 128],
        1024,
        1,
        [([(0, 0), (1, 512), (2, 1024)], 1152, 1152)],
    ),
    "a tensor of the cap's size closes its bucket": (
        [128, 1024, 128],
        1024,
        1,
        [([(0, 0), (1, 128)], 1152, 1152), ([(2, 0)], 128, 128)],
    ),
    "a larger one is alone, and what waits goes on filling": (
        [128, 1025, 128],
        1024,
        1,
        [([(1, 0)], 1025, 1152), ([(0, 0), (2, 128)], 256, 256)],
    ),
    "alignment counts": ([4, 4, 4], 256, 1, [([(0, 0), (1, 128), (2, 256)], 260, 384)]),
    "empty tensors": ([0, 4, 0], 128, 3, [([(0, 0), (1, 0), (2, 128)], 128, 384)]),
    "one share": ([1000], 1024, 1, [([(0, 0)], 1000, 1024)]),
    "eight shares": ([1000], 1024, 8, [([(0, 0)], 1000, 1024)]),
    "nine shares": ([1000], 1024, 9, [([(0, 0)], 1000, 1152)]),
}


@pytest.mark.parametrize("name", TABLE)
def test_plans(name: str) -> None:
    sizes, cap, shares, expected = TABLE[name]
    assert shape(plan_buckets(specs(*sizes), cap, shares)) == expected


def test_a_bucket_holds_one_dtype_and_one_device() -> None:
    tensors = [
        TensorSpec("a", 128, "float32", "cuda:0"),
        TensorSpec("b", 128, "float16", "cuda:0"),
        TensorSpec("c", 128, "float32", "cuda:1"),
        TensorSpec("d", 128, "float32", "cuda:0"),
        TensorSpec("e", 128, "float16", "cuda:0"),
    ]
    found = {
        (b.dtype, b.device): [p.index for p in b.slots] for b in plan_buckets(tensors, 1024, 2)
    }
    assert found == {
        ("float32", "cuda:0"): [0, 3],
        ("float16", "cuda:0"): [1, 4],
        ("float32", "cuda:1"): [2],
    }


def test_buckets_come_in_the_order_in_which_they_are_complete() -> None:
    tensors = [
        TensorSpec("a", 128, "float16"),
        TensorSpec("b", 512, "float32"),
        TensorSpec("c", 128, "float16"),
        TensorSpec("d", 128, "float32"),
    ]
    last = [b.slots[-1].index for b in plan_buckets(tensors, 512, 2)]
    assert last == [1, 2, 3]


@pytest.mark.parametrize(("cap", "shares"), [(0, 1), (-128, 1), (100, 1), (128, 0)])
def test_plans_that_cannot_be_made(cap: int, shares: int) -> None:
    with pytest.raises(SMDDPConfigInvalid, match=f"bucket_cap_bytes={cap} with {shares} shares"):
        plan_buckets(specs(4), cap, shares)


tensor_lists = st.lists(
    st.builds(
        TensorSpec,
        st.just("t"),
        st.integers(0, 5000),
        st.sampled_from(["float32", "float16", "float64"]),
        st.sampled_from(["cpu", "cuda:0"]),
    ),
    max_size=40,
)


@given(tensor_lists, st.integers(1, 20).map(lambda n: n * 128), st.integers(1, 9))
def test_what_holds_for_every_plan(tensors: list[TensorSpec], cap: int, shares: int) -> None:
    buckets = plan_buckets(tensors, cap, shares)
    assert buckets == plan_buckets(tensors, cap, shares)
    placed = [p.index for b in buckets for p in b.slots]
    assert sorted(placed) == list(range(len(tensors)))
    for bucket in buckets:
        members = [tensors[p.index] for p in bucket.slots]
        assert {(t.dtype, t.device) for t in members} == {(bucket.dtype, bucket.device)}
        assert [p.index for p in bucket.slots] == sorted(p.index for p in bucket.slots)
        # Disjoint, aligned, inside; equal shares of whole 128 bytes.
        end = before_last = 0
        for slot, tensor in zip(bucket.slots, members, strict=True):
            assert slot.offset % 128 == 0
            assert slot.offset >= end
            assert slot.offset - end < 128
            before_last = end
            end = slot.offset + tensor.num_bytes
        assert end == bucket.used_bytes <= bucket.capacity_bytes < end + shares * 128
        assert bucket.capacity_bytes % (shares * 128) == 0
        # Closed by its last tensor, not before; what is larger than the cap is alone.
        assert before_last < cap
        if any(t.num_bytes > cap for t in members):
            assert len(members) == 1
    lasts = [b.slots[-1].index for b in buckets]
    assert lasts == sorted(lasts)
    # At most one bucket of a kind has been left open.
    for kind in {(b.dtype, b.device) for b in buckets}:
        below = [b for b in buckets if (b.dtype, b.device) == kind and b.used_bytes < cap]
        assert len(below) <= 1


# ---- bucket_cap_mb -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "num_bytes"),
    [
        (1, MIB),
        (25, 26214400),
        (0.5, MIB // 2),
        (1 / 8192, 128),
        (1000, 1000 * MIB),
        (np.int64(3), 3 * MIB),
        (np.float32(2), 2 * MIB),
        (fractions.Fraction(1, 2), MIB // 2),
        (None, 12800),
    ],
)
def test_bucket_caps(cap: Any, num_bytes: int) -> None:
    found = parse_bucket_cap(cap, default_bytes=12800)
    assert found == num_bytes
    assert type(found) is int


@pytest.mark.parametrize(
    ("cap", "value", "num_bytes"),
    [
        (0, "0", "0"),
        (-1, "-1", "-1048576"),
        (1 / 3, "0.3333333333333333", "349525.3333333333"),
        (0.00005, "5e-05", "52.4288"),
        (1 / MIB, "9.5367431640625e-07", "1"),
        (math.nan, "nan", "nan"),
        (math.inf, "inf", "inf"),
    ],
)
def test_bucket_caps_that_are_refused(cap: Any, value: str, num_bytes: str) -> None:
    with pytest.raises(ValueError, match="fusion buffer size") as caught:
        parse_bucket_cap(cap, 12800)
    assert str(caught.value) == (
        f"bucket_cap_mb={value} gives {num_bytes} bytes; the fusion buffer size must be a positive"
        " multiple of 128 bytes"
    )


@pytest.mark.parametrize(
    ("cap", "value", "kind"),
    [(True, "True", "bool"), ("25", "'25'", "str"), ([25], "[25]", "list")],
)
def test_a_bucket_cap_that_is_no_number_is_refused_by_its_type(
    cap: Any, value: str, kind: str
) -> None:
    # The text was "gives nan bytes" up to the version before this test.
    with pytest.raises(ValueError, match="fusion buffer size") as caught:
        parse_bucket_cap(cap, 12800)
    assert str(caught.value).startswith(f"bucket_cap_mb={value} is of type {kind}; expected a num")


@given(st.integers(1, 10**6))
def test_every_positive_whole_number_is_a_bucket_cap(cap: int) -> None:
    assert parse_bucket_cap(cap, 1) == cap * MIB
