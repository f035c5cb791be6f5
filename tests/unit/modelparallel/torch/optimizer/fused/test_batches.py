# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Batches and pieces: all of each tensor, once, in the order of its memory."""

from __future__ import annotations

import pytest
import torch

from smdistributed.modelparallel.torch.optimizer.fused import batches
from smdistributed.modelparallel.torch.optimizer.fused.batches import Scratch, in_batches, in_pieces


def test_batches_hold_whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batches._BATCH, "cpu", 10)
    given = [torch.zeros(size) for size in (3, 7, 1, 25, 4, 4, 4)]
    found = [(places, work) for places, work in in_batches((given, given))]
    assert [list(places) for places, _ in found] == [[0, 1], [2], [3], [4, 5], [6]]
    for places, (first, second) in found:
        for place, one, other in zip(places, first, second, strict=True):
            assert one is given[place], "nothing to copy"
            assert other is given[place], "nothing to copy"
    assert list(in_batches(([], []))) == []


def test_copies_go_back_but_for_gradients() -> None:
    with_gaps = torch.zeros(4, 6)[:, ::2]
    half = torch.ones(5, dtype=torch.bfloat16)
    state = torch.zeros(4, 3).t().contiguous().t()
    gradient = torch.zeros(5, dtype=torch.bfloat16)
    columns = ([with_gaps, half], [torch.zeros(4, 3), gradient], [state, torch.zeros(5)])
    for _, work in in_batches(columns):
        for column in work:
            for tensor, leader in zip(column, work[0], strict=True):
                assert tensor.dtype is torch.float32
                assert tensor.stride() == leader.stride()
                tensor.fill_(3.0)
    for column in (columns[0], columns[2]):
        assert all((tensor == 3).all() for tensor in column)
    assert not gradient.any()


def test_pieces_cover_each_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_PIECE", 8)
    given = [torch.zeros(3, 5).t(), torch.zeros(2), torch.zeros(()), torch.zeros(17)]
    number = 0
    for places, (first, second) in in_pieces((given, given)):
        assert sum(each.numel() for each in first) <= 8
        for place, one, other in zip(places, first, second, strict=True):
            assert one.data_ptr() == other.data_ptr()
            assert given[place].data_ptr() <= one.data_ptr()
            number += 1
            one += 1.0
    assert number == 2 + 1 + 1 + 3
    assert all((each == 1).all() for each in given)


def test_scratch_is_kept_and_not_copied() -> None:
    scratch = Scratch()
    like = [torch.zeros(3, 4).t(), torch.zeros(5)]
    first = scratch.like(like)
    assert [each.shape for each in first] == [each.shape for each in like]
    assert [each.stride() for each in first] == [each.stride() for each in like]
    begins = [each.data_ptr() for each in first]
    assert begins[1] - begins[0] == 12 * 4
    assert scratch.like(like[1:])[0].data_ptr() == begins[0]
    assert scratch.like([torch.zeros(2, dtype=torch.float64)])[0].dtype is torch.float64
    assert scratch.__reduce__() == (Scratch, ())
