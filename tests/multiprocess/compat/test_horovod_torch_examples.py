# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of Horovod's PyTorch examples: one process's weights, and the same bits everywhere."""

from __future__ import annotations

import pytest
import torch
from harness import run_ranks

from tests.multiprocess.compat import horovod_examples as examples

# float32 sums in another order, over 10 to 15 steps of a small network.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_mnist_example_equals_one_process(world_size: int) -> None:
    results = run_ranks(examples.mnist, world_size)
    expected = examples.mnist_alone(world_size)
    for weights, accuracy in results:
        torch.testing.assert_close(weights, expected, **TOLERANCE)
        assert all(map(torch.equal, weights, results[0][0]))
        assert accuracy == results[0][1] > 0.3


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_synthetic_benchmark_leaves_equal_weights(world_size: int) -> None:
    results = run_ranks(examples.synthetic, world_size)
    for weights in results:
        assert all(map(torch.equal, weights, results[0]))
        assert all(torch.isfinite(weight).all() for weight in weights)
