# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The line about a large tensor that is reduced again and again: when it comes, and only once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from smdistributed._common.log import LOGGER_NAME
from smdistributed.dataparallel.torch import notices
from smdistributed.dataparallel.torch.adoption.marks import OURS, mark
from smdistributed.dataparallel.torch.adoption.notice import MIN_BYTES, TIMES, Notice

_COUNT = MIN_BYTES // 4


@pytest.fixture(autouse=True)
def _unsaid(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, LOGGER_NAME)
    notices.forget()
    yield
    notices.forget()


def test_the_tenth_reduction_brings_one_line(caplog: pytest.LogCaptureFixture) -> None:
    notice, tensor, other = Notice(), torch.ones(_COUNT), torch.ones(_COUNT)
    for _ in range(TIMES - 1):
        notice.see(tensor, "all_reduce")
    assert not caplog.records
    for _ in range(2 * TIMES):
        notice.see(tensor, "all_reduce")
        notice.see(other, "reduce")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "a tensor of 1.0 MiB has been reduced 10 times" in record.getMessage()
    assert "smdistributed.dataparallel.torch.empty_shared()" in record.getMessage()
    assert "docs/zero_copy.md" in record.getMessage()


def test_small_fresh_and_shared_tensors_and_other_collectives_bring_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notice, small, read = Notice(), torch.ones(_COUNT - 1), torch.ones(_COUNT)
    shared, parts = torch.ones(_COUNT), torch.ones(2 * TIMES * _COUNT)
    mark(shared.untyped_storage(), OURS)
    for step in range(2 * TIMES):
        notice.see(small, "all_reduce")
        notice.see(read, "broadcast")
        notice.see(torch.ones(_COUNT), "all_reduce")
        notice.see(shared, "all_reduce")
        notice.see(parts[step * _COUNT : (step + 1) * _COUNT], "all_reduce")
    assert not caplog.records
