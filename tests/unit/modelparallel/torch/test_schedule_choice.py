# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which schedule `"pipeline": "auto"` means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from smdistributed.modelparallel.config import Config
from smdistributed.modelparallel.torch.schedule_choice import chosen_schedule
from smdistributed.modelparallel.torch.tracing import trace


def _choice(width: int, last: int = 1, **parameters: Any) -> str:
    """Of four layers in two partitions, the first `4 - last` of which are in partition 0."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    found = trace(model, (torch.randn(512, width),), {}, torch.device("cpu"), is_measured=False)
    partition_of = {"main": 0} | {f"main/{n}": int(n >= 4 - last) for n in range(4)}
    config = {"pipeline_parallel_degree": 2, "microbatches": 4, "pipeline": "auto", **parameters}
    return chosen_schedule(found, partition_of, Config.parse(config, {}))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"width": 1024, "last": 2}, "zero_bubble"),
        # Too little work in a layer to be worth a piece of its own.
        ({"width": 16, "last": 2}, "interleaved"),
        # There is hardly a bubble.
        ({"width": 1024, "last": 2, "microbatches": 64}, "interleaved"),
        # The second rank would keep four microbatches of three layers instead of one of them.
        ({"width": 1024, "last": 3}, "interleaved"),
        ({"width": 1024, "last": 3, "optimize": "speed"}, "zero_bubble"),
    ],
)
def test_the_shorter_predicted_step_that_fits(case: dict[str, Any], expected: str) -> None:
    assert _choice(**case) == expected
