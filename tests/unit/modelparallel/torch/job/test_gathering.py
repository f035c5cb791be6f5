# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What goes from whom to whom, as tables; that it arrives, the multiprocess tests show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from smdistributed.modelparallel.torch.job import gathering
from smdistributed.modelparallel.torch.job.gathering import Offer

SMALL, LARGE = 10, 2 * 1024 * 1024


def offers(*ranks: Mapping[str, Any]) -> list[Offer]:
    made = []
    for values in ranks:
        entries = {key: gathering._taken_apart(value)[0] for key, value in values.items()}
        made.append(Offer(None, entries))
    return made


def plan(given: Sequence[Offer], wanted: Mapping[int, str]) -> list[tuple[int, Any, list[str]]]:
    """By transfer: source, receivers, keys."""
    found = gathering._plan(given, lambda rank, key, _: str(key) in wanted[rank], [None] * 3)
    return [(each.source, each.receivers, [str(key) for key, _ in each.parts]) for each in found]


def tensor(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def test_small_ones_travel_together_and_large_ones_alone() -> None:
    first = {"a": tensor(SMALL), "b": tensor(LARGE), "c": tensor(SMALL), "d": [tensor(1)] * 2}
    given = offers(first, {"e": {"x": tensor(SMALL), "y": 3}}, {})
    everything = dict.fromkeys(range(3), "abcde")
    assert plan(given, everything) == [
        (0, (1, 2), ["b"]),
        (0, (1, 2), ["a", "c", "d"]),
        (1, (0, 2), ["e"]),
    ]


def test_a_bucket_is_bounded() -> None:
    count = gathering._SMALL_BYTES - 1
    many = {str(number): tensor(count) for number in range(10)}
    found = gathering._plan(offers(many, {}), lambda *_: True, [None] * 2)
    sizes = [len(each.parts) for each in found]
    assert sizes == [8, 2]
    assert max(sizes) * count <= gathering._BUCKET_BYTES


def test_only_who_wants_and_has_not_receives() -> None:
    given = offers({"a": tensor(1), "b": tensor(1)}, {"b": tensor(1), "c": tensor(1)}, {})
    assert plan(given, {0: "abc", 1: "ab", 2: "bc"}) == [
        (0, (1,), ["a"]),
        (0, (2,), ["b"]),
        (1, (0, 2), ["c"]),
    ]
    assert plan(given, {0: "ab", 1: "bc", 2: ""}) == []


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"nested": [torch.arange(6).reshape(2, 3), "text"], "again": (torch.tensor(2.5),)},
        torch.arange(12.0).reshape(3, 4).t()[::2],
        torch.eye(3).to_sparse(),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_a_value_without_its_data_and_back(value: Any) -> None:
    entry, tensors = gathering._taken_apart(value)
    assert len(entry.pickled) < 2000
    hollow = gathering._put_together(entry, None)
    whole = gathering._put_together(entry, [gathering._copied(each) for each in tensors])
    assert_alike(whole, value)
    if tensors and isinstance(value, torch.Tensor):
        assert hollow.is_meta
        assert hollow.shape == value.shape


def assert_alike(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found.to_dense(), expected.to_dense())
        assert found.data_ptr() != expected.data_ptr() if not expected.is_sparse else True
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_alike(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected


def test_the_same_tensor_twice_travels_once() -> None:
    shared = torch.zeros(4)
    entry, tensors = gathering._taken_apart([shared, shared])
    assert len(tensors) == 1
    one, other = gathering._put_together(entry, tensors)
    assert one is other
