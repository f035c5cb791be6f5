# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for TensorFlow, against NumPy and against one process.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.horovod_names import (
    ARGUMENTS,
    BEFORE_INIT,
    REFUSED,
    REFUSED_ARGUMENTS,
)
from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("horovod_ranks.py")
FALLBACK = [
    "check_allreduce",
    "check_allgather",
    "check_gradients_of_what_is_gathered",
    "check_barrier_and_join",
    "check_the_tape",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@functools.cache
def what_names_do() -> dict[str, str]:
    file = Path(__file__).with_name("horovod_ranks.py")
    (found,) = run_tensorflow_ranks(f"{file}:what_names_do", 1)
    assert isinstance(found, dict)
    return found


def test_arguments_are_horovods() -> None:
    file = Path(__file__).with_name("horovod_ranks.py")
    (found,) = run_tensorflow_ranks(f"{file}:arguments_of_names", 1)
    assert found == ARGUMENTS


@pytest.mark.parametrize(
    ("name", "advice"),
    [(f"{m}.{name}", text) for m, names in REFUSED.items() for name, text in names.items()],
)
def test_refused_names_say_what_to_write(name: str, advice: str) -> None:
    assert advice in what_names_do()[name]


@pytest.mark.parametrize("call", REFUSED_ARGUMENTS)
def test_refused_arguments_say_what_to_write(call: str) -> None:
    assert REFUSED_ARGUMENTS[call] in what_names_do()[call]


@pytest.mark.parametrize("call", BEFORE_INIT)
def test_what_needs_the_ranks_asks_for_init(call: str) -> None:
    said = what_names_do()[f"before init: {call}"]
    assert said.startswith(f"hvd.{BEFORE_INIT[call]}() was called before hvd.init()"), said
    assert "Call hvd.init() first" in said


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CHECKS.names)
def test_horovod(name: str, ranks: int) -> None:
    CHECKS.require(name, ranks)


@pytest.mark.parametrize("name", FALLBACK)
def test_horovod_by_python_functions(name: str) -> None:
    CHECKS.require(name, 2, FALLBACK, SMDDP_TF_OPERATIONS="python")
