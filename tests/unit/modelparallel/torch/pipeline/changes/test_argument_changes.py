# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is seen of a call's arguments before and after it, and made again on the caller's own."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import Tensor

from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.pipeline.changes.apply import apply_changes
from smdistributed.modelparallel.torch.pipeline.changes.changed_arguments import (
    Watch,
    is_any_changed,
    tensors_watched,
)
from smdistributed.modelparallel.torch.pipeline.changes.passed_arguments import Passed


def _forward(x: Tensor, box: Any = None, *rest: Any) -> None:
    """Names the arguments."""


def _no_attribute(number: int, name: str, value: object) -> None:
    raise AssertionError(f"nothing has set {name}")


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_a_tensor_that_was_looked_at_has_not_changed(
    shape: tuple[int, ...], dtype: torch.dtype, is_inference: bool
) -> None:
    with torch.inference_mode(is_inference):
        tensor = torch.ones(shape, dtype=dtype)
        if dtype.is_floating_point:
            tensor = tensor * torch.nan  # which is not equal to itself
        before = tensors_watched([tensor.t()])
        tensor.sum()
        assert not is_any_changed([tensor.t()], before)
        before = tensors_watched([tensor])
        tensor.fill_(7)
        assert is_any_changed([tensor], before) == (tensor.numel() > 0 or not is_inference)


@pytest.mark.parametrize(
    ("box", "change", "seen"),
    [
        ([1, 2], lambda box: box.append(3), [1, 2, 3]),
        ({"a": 1}, lambda box: box.pop("a"), {}),
        ({1: 2}, lambda box: box.update({1: 2.0}), {1: 2.0}),
        ({1}, lambda box: box.add(2), {1, 2}),
        (collections.deque([1, 2], 2), lambda box: box.append(3), collections.deque([2, 3], 2)),
        ([0.0], lambda box: box.__setitem__(0, -0.0), [-0.0]),
        ([[1], [2]], lambda box: box[1].clear(), [[1], []]),
    ],
)
def test_a_change_is_made_on_the_callers_own_object(box: Any, change: Any, seen: Any) -> None:
    x, box = torch.ones(2), _copied(box)
    watch = Watch((x, box), {})
    assert not watch.changes("m", _forward, None).what
    passed = Passed((torch.ones(2), _copied(box)), {})
    mine = passed.reach
    change(box)
    changes = watch.changes("m", _forward, (x, box))
    assert changes.what == "its argument 'box'"
    returned = apply_changes(
        changes, list(changes.tensors), passed, "m on rank 1", _forward, _no_attribute
    )
    assert repr(mine.objects[0]) == repr(seen)
    assert returned[0] is mine.tensors[0]
    assert returned[1] is mine.objects[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, box: box["list"].append(1),
        lambda x, box: box["tensor"].add_(1),
        lambda x, box: box.pop("tensor"),
    ],
)
def test_what_somebody_else_has_changed_meanwhile_is_an_error(change: Any) -> None:
    x, box = torch.ones(2), {"list": [0], "tensor": torch.zeros(2)}
    passed = Passed((x,), {"box": box})
    change(x, box)
    with pytest.raises(SMPError, match="another microbatch changed its argument 'box' too"):
        passed.require_untouched([], "m on rank 1", _forward)


def test_tensors_by_themselves_may_be_changed_unless_the_call_has_changed_them() -> None:
    x, box = torch.ones(2), {"tensor": torch.zeros(2)}
    passed = Passed((x,), {"box": box})
    passed.require_untouched([0, 1], "m on rank 1", _forward)
    x.add_(1)
    passed.require_untouched([], "m on rank 1", _forward)
    with pytest.raises(SMPError, match="'x' too"):
        passed.require_untouched([0], "m on rank 1", _forward)


def _copied(box: Any) -> Any:
    if isinstance(box, list):
        return [_copied(each) for each in box]
    return box.copy() if isinstance(box, (dict, set, collections.deque)) else box


@pytest.mark.parametrize(
    ("args", "name"),
    [(([],), "x"), ((0, []), "box"), ((0, 0, []), "*rest[0]"), ((0, 0, 0, []), "*rest[1]")],
)
def test_the_argument_is_named(args: tuple[Any, ...], name: str) -> None:
    args = _copied([*args])
    watch = Watch(args, {})
    args[-1].append(1)
    assert watch.changes("m", _forward, None).what == f"its argument {name!r}"
