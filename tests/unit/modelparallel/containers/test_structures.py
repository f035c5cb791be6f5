# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a framework says of its types to `structures`; the rest is in torch/containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from smdistributed.modelparallel.containers import structures
from smdistributed.modelparallel.containers.structures import (
    flatten,
    is_container,
    never_open,
    open_as,
    open_results_of,
)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test says of types is not heard of again."""
    monkeypatch.setattr(structures, "_never_containers", structures._never_containers)
    monkeypatch.setattr(structures, "_opened_modules", structures._opened_modules)
    monkeypatch.setattr(structures, "_wrappers", dict(structures._wrappers))
    yield
    monkeypatch.undo()
    structures._kinds.clear()


class Vector(list[Any]):
    pass


class Proxy:
    """Stands for a dict."""

    def __init__(self, inner: dict[str, Any]) -> None:
        self.inner = inner

    def keys(self) -> Any:
        return self.inner.keys()

    def __getitem__(self, key: str) -> Any:
        return self.inner[key]


def test_a_class_is_a_leaf_from_when_it_is_said() -> None:
    vector = Vector([1, 2])
    assert flatten([vector])[0] == [1, 2]
    never_open(Vector)
    assert flatten([vector])[0] == [vector]


def test_results_made_in_c_are_leaves_unless_it_is_said_that_they_hide_nothing() -> None:
    times = os.times()
    assert flatten(times)[0] == [times]
    open_results_of("posix")
    leaves, structure = flatten(times)
    assert leaves == list(times)
    assert structure.unflatten(leaves) == times


def test_a_wrapper_comes_back_as_what_it_stands_for() -> None:
    assert not is_container(Proxy)
    open_as(Proxy, dict)
    leaves, structure = flatten([Proxy({"a": 1, "b": [2]})])
    assert leaves == [1, 2]
    assert structure.paths("x") == ["x[0]['a']", "x[0]['b'][0]"]
    again = structure.unflatten([3, 4])
    assert again == [{"a": 3, "b": [4]}]
    assert type(again[0]) is dict
