# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training with Keras on several ranks, against one process with the batches joined.

Source: dataparallel specification, sections 6.3, 7.7, 7.9, 8 and 12.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from preloaded import start_fresh
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

KERAS_3, TF_KERAS = "0", "1"
# Of each file, what depends on the number of ranks most.
FEW = {
    "keras_fit_ranks.py": [
        "check_fit_equals_one_process",
        "check_metrics_are_averaged",
        "check_logs_that_differ_between_ranks",
        "check_the_broadcast_callback",
    ],
    "keras_optimizers_ranks.py": [
        "check_loops_of_ones_own",
        "check_a_loop_in_a_function",
        "check_arguments",
        "check_reduced_once_with_a_tape",
        "check_a_gradient_that_some_ranks_lack",
    ],
    "keras_precision_ranks.py": ["check_an_overflow_on_one_rank"],
}
CHECKS = {file: Checks(file) for file in FEW}

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _names(file: str, keras: str) -> list[str]:
    """Without those that are for the other Keras."""
    other = "check_tf_keras_" if keras == KERAS_3 else "check_keras3_"
    return [name for name in CHECKS[file].names if not name.startswith(other)]


@pytest.mark.parametrize(
    ("keras", "file", "name"),
    [
        (keras, file, name)
        for keras in (KERAS_3, TF_KERAS)
        for file in CHECKS
        for name in _names(file, keras)
    ],
)
def test_keras(keras: str, file: str, name: str) -> None:
    CHECKS[file].require(name, 2, _names(file, keras), TF_USE_LEGACY_KERAS=keras)


@pytest.mark.parametrize("keras", [KERAS_3, pytest.param(TF_KERAS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FEW for name in FEW[file]])
def test_keras_on_four_ranks(file: str, name: str, keras: str) -> None:
    CHECKS[file].require(name, 4, FEW[file], TF_USE_LEGACY_KERAS=keras)


@pytest.mark.parametrize("keras", [KERAS_3, TF_KERAS])
def test_a_saved_model_is_loaded_without_us(keras: str, tmp_path: Path) -> None:
    path, env = str(tmp_path / "model.keras"), {"TF_USE_LEGACY_KERAS": keras}
    save = Path(__file__).with_name("keras_fit_ranks.py")
    run_tensorflow_ranks(f"{save}:save_trained_model", 2, path, env=env)
    start_fresh(True)  # preloaded ones have our modules
    (loaded,) = run_tensorflow_ranks(load_without_us, 1, path, env=env)
    assert loaded == ("Adam", 6)


def load_without_us(rank: int, world_size: int, path: str) -> tuple[str, int]:
    """Class of a model's optimizer, and how many steps it has made."""
    assert "smdistributed.dataparallel" not in sys.modules
    sys.modules["smdistributed.dataparallel"] = None  # type: ignore[assignment]
    import tensorflow as tf

    optimizer = tf.keras.models.load_model(path).optimizer
    return type(optimizer).__name__, int(optimizer.iterations)


def test_callbacks_of_tf_keras_without_eager_execution() -> None:
    """What they make in a graph is run."""
    ranks = Path(__file__).with_name("keras_fit_ranks.py")
    found = run_tensorflow_ranks(f"{ranks}:fit_in_sessions", 2, env={"TF_USE_LEGACY_KERAS": "1"})
    # From weights (1, 1) and (2, 2), inputs (1, 1) and (2, 2).
    first = (2.0**2 + 8.0**2) / 2
    gradient = (2 * 2 * 1 + 2 * 8 * 2) / 2
    weight = 1.0 - 0.125 * gradient
    second = ((2 * weight) ** 2 + (4 * weight) ** 2) / 2
    gradient = (2 * 2 * weight * 1 + 2 * 4 * weight * 2) / 2
    for weights, losses, refusal in found:
        assert losses == pytest.approx([first, second])
        assert weights == pytest.approx([weight - 0.125 * gradient] * 2)
        assert "executes nothing eagerly; expected eager execution" in refusal
