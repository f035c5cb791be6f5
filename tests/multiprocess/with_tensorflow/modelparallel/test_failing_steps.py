# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow's pipelines that fail, with real models (`failing_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

FAILING = Checks(Path(__file__).parent / "failing_ranks.py")
REFUSING = Checks(Path(__file__).parent / "refusing_ranks.py")
# In which Keras makes graphs of Python; operations that raise are TensorFlow's.
FIRST_TRACES = [
    "check_a_first_trace_that_fails_in_a_function",
    "check_a_function_of_which_nothing_would_run",
]
# Where Keras has a say: its models, layers, optimizers and metrics, and how it makes graphs of
# Python. What else is refused is refused before Keras sees it.
BY_KERAS = [
    "check_models_that_differ",
    "check_python_errors_while_tracing",
    "check_a_model_outside_of_a_step",
    "check_updates_and_collectives_in_a_step",
    "check_a_step_output_is_no_tensor",
    "check_models_that_cannot_be_made",
    "check_a_variable_without_gradient",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", FAILING.names)
def test_steps_that_fail(name: str) -> None:
    FAILING.require(name, 3)


@pytest.mark.parametrize("name", FIRST_TRACES)
def test_first_traces_of_tf_keras_that_fail(name: str) -> None:
    FAILING.require(name, 2, FIRST_TRACES, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "is_legacy"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("name", FAILING.names)
def test_more_steps_that_fail(name: str, ranks: int, is_legacy: int) -> None:
    FAILING.require(name, ranks, TF_USE_LEGACY_KERAS=str(is_legacy))


@pytest.mark.parametrize("name", REFUSING.names)
def test_what_is_refused(name: str) -> None:
    REFUSING.require(name, 2)


@pytest.mark.parametrize("name", BY_KERAS)
def test_what_is_refused_with_tf_keras(name: str) -> None:
    REFUSING.require(name, 2, BY_KERAS, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSING.names)
def test_all_that_is_refused_with_tf_keras(name: str) -> None:
    REFUSING.require(name, 2, TF_USE_LEGACY_KERAS="1")
