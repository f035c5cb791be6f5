# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks compare before they wrap a model, and how a difference is told."""

from __future__ import annotations

import torch
from torch import nn

from smdistributed.dataparallel.torch.parallel.agreement import describe_model, first_difference


def test_a_model_is_described_by_everything_that_must_agree() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    model.register_parameter("turned", nn.Parameter(torch.ones(2, 3).t().half()))
    assert describe_model(model, {"1.bias", "1.running_var"}, {"cap": 5}) == [
        "cap=5",
        "parameter turned: float16 [3, 2] with strides [1, 3] on cpu, trained",
        "parameter 0.weight: float32 [2, 3] on cpu, trained",
        "parameter 0.bias: float32 [2] on cpu, frozen",
        "parameter 1.weight: float32 [2] on cpu, trained",
        "buffer 1.running_mean: float32 [2] on cpu",
        "buffer 1.num_batches_tracked: int64 [] on cpu",
    ]


def test_the_first_difference_names_who_has_what() -> None:
    a, b, c = ["x", "one"], ["x", "two"], ["x", "one", "more"]
    assert first_difference([a, b, a]) == "ranks 0, 2: one; rank 1: two"
    assert first_difference([a, c]) == "rank 0: nothing more; rank 1: more"
    assert first_difference([a, a]) == "none"
