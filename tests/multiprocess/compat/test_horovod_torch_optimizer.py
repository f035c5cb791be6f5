# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`hvd.DistributedOptimizer` and what carries state: as one process on the whole batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from harness import run_ranks

from tests.multiprocess.compat import horovod_training as ranks

WAYS = [
    "sgd",
    "adam",
    "unnamed",
    "sum",
    "fp16",
    "own compressor",
    "predivide",
    "passes",
    "closure",
    "clipped",
    "synchronized twice",
    "zeroed in place",
]


@pytest.mark.parametrize("world_size", [2, 3])
def test_training_equals_one_process(world_size: int) -> None:
    run_ranks(ranks.training, world_size, WAYS)


def test_one_rank_reduces_nothing() -> None:
    run_ranks(ranks.alone, 1)


def test_a_scaled_loss_is_unscaled_after_the_reduction() -> None:
    run_ranks(ranks.scaled_loss, 2)


@pytest.mark.parametrize("world_size", [2, 3])
def test_parameters_without_gradients_count_as_zeros(world_size: int) -> None:
    run_ranks(ranks.without_gradients, world_size)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense: bool) -> None:
    run_ranks(ranks.sparse_embedding, 3, as_dense)


def test_parameters_that_come_later() -> None:
    run_ranks(ranks.more_parameters, 2)


def test_hooks_and_steps_that_are_left_out() -> None:
    run_ranks(ranks.hooks_and_skipped_steps, 2)


def test_misuse_is_told_in_words() -> None:
    run_ranks(ranks.misuse, 2)


@pytest.mark.parametrize("kind", ["default", "view", "legacy"])
def test_a_model_in_ddp_is_an_error(kind: str) -> None:
    for error, text, _ in run_ranks(ranks.under_ddp, 2, kind):
        assert error == "SMDDPUnsupported", text
        assert "leave one of the two out" in text


def test_two_optimizers_of_one_model_are_an_error() -> None:
    for error, text, _ in run_ranks(ranks.two_optimizers_of_one_model, 2):
        assert error == "SMDDPUnsupported", text
        assert "reduced by something else as well" in text


@pytest.mark.parametrize(
    ("disagreement", "words"),
    [
        (ranks.other_models, "ranks optimize different parameters"),
        (ranks.swapped_optimizers, "hvd.DistributedOptimizer number 1"),
        (ranks.uneven_batches, "a different number of batches"),
        (ranks.no_batches, "a different number of batches"),
    ],
)
def test_ranks_that_disagree_get_an_error_each(disagreement: Any, words: str) -> None:
    for error, text, _ in run_ranks(disagreement, 2):
        assert error == "SMDDPMismatch", text
        assert words in text


@pytest.mark.parametrize("world_size", [2, 3])
def test_parameters_of_the_root(world_size: int) -> None:
    run_ranks(ranks.parameters_of_root, world_size)


def test_the_optimizer_state_of_the_root() -> None:
    cases = list(itertools.product(["SGD", "Adam"], ["root", "others", "all"]))
    run_ranks(ranks.optimizer_states_of_root, 3, cases)
