# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which operations of a coalesced call travel together."""

from __future__ import annotations

from typing import Any

import torch

from smdistributed.collectives import _native
from smdistributed.dataparallel.torch.coalescing import Bundle, coalesce
from smdistributed.dataparallel.torch.operation import Operation

KIB = 1 << 10


class _Engine:
    """Notes what it is told: (function, arguments)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, arguments))


def _all_reduce(nbytes: int, dtype: torch.dtype = torch.uint8, **how: Any) -> Operation:
    tensor = torch.empty(nbytes // dtype.itemsize, dtype=dtype)
    return Operation("all_reduce", (tensor,), (tensor,), dtype, **how)


def _sizes(operations: list[Operation]) -> list[list[int]]:
    """Elements of what the engine is told, call by call."""
    engine = _Engine()
    for runnable in coalesce(operations):
        runnable.run(engine, 0.0)
    return [
        arguments[3] if name == "coalesced_ptr" else [arguments[1]]
        for name, arguments in engine.calls
    ]


def test_small_ones_travel_together_and_large_ones_alone() -> None:
    sizes = [0, 1, 33 * KIB, 100, 32 * KIB, 1 << 20, 7]
    assert _sizes([_all_reduce(size) for size in sizes]) == [
        [0, 1, 100, 32 * KIB, 7],
        [33 * KIB],
        [1 << 20],
    ]


def test_a_full_bundle_is_followed_by_another() -> None:
    numbers = [len(sizes) for sizes in _sizes([_all_reduce(32 * KIB) for _ in range(70)])]
    assert numbers == [32, 32, 6]


def test_a_bundle_has_one_dtype_and_one_reduce_operation() -> None:
    operations = [
        _all_reduce(8, torch.float32),
        _all_reduce(8, torch.int64),
        _all_reduce(16, torch.float32),
        _all_reduce(8, torch.float32, code=_native.MAX),
        _all_reduce(24, torch.float32, code=_native.MAX),
        _all_reduce(16, torch.int64),
    ]
    assert _sizes(operations) == [[2, 4], [1, 2], [2, 6]]


def test_one_operation_stays_what_it_is() -> None:
    operation = _all_reduce(8)
    assert coalesce([operation]) == [operation]
    assert coalesce([]) == []


def test_kinds_that_cannot_be_bundled_stay_single() -> None:
    tensors = [torch.empty(4) for _ in range(2)]
    operations = [Operation("all_gather", [tensors[0]], tensors, torch.float32) for _ in range(2)]
    assert coalesce(operations) == operations


def test_the_engine_is_told_shares_and_unknown_types_as_bytes() -> None:
    share, whole = torch.empty(6, dtype=torch.float8_e5m2), torch.empty(18, dtype=torch.float8_e5m2)
    gather = Operation("all_gather_single", (share,), (whole,), share.dtype)
    floats = torch.empty(6), torch.empty(18)
    scatter = Operation("reduce_scatter_single", (floats[1],), (floats[0],), torch.float32)
    engine = _Engine()
    for runnable in coalesce([gather, scatter, gather, scatter]):
        runnable.run(engine, 2.0)
    assert engine.calls == [
        (
            "coalesced_ptr",
            (
                "all_gather",
                [share.data_ptr()] * 2,
                [whole.data_ptr()] * 2,
                [6, 6],
                _native.OPAQUE8,
                _native.SUM,
                1.0,
                False,
                2.0,
            ),
        ),
        (
            "coalesced_ptr",
            (
                "reduce_scatter",
                [floats[1].data_ptr()] * 2,
                [floats[0].data_ptr()] * 2,
                [6, 6],
                _native.FLOAT32,
                _native.SUM,
                1.0,
                False,
                2.0,
            ),
        ),
    ]


def test_copies_of_all_operations_are_made_after_it() -> None:
    targets = [torch.zeros(8)[::2] for _ in range(2)]
    stand_ins = [torch.full((4,), float(i + 1)) for i in range(2)]
    operations = [
        Operation("all_gather_single", (s,), (s,), torch.float32, copies=[(t, s)])
        for t, s in zip(targets, stand_ins, strict=True)
    ]
    (bundle,) = coalesce(operations)
    assert isinstance(bundle, Bundle)
    bundle.run(_Engine(), 0.0)
    assert [target.tolist() for target in targets] == [[1.0] * 4, [2.0] * 4]
