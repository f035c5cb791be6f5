# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank of test_remedies.py does: lines of documented scripts, and what comes of each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_harness import forget_the_launcher

K = tf.keras


def attempt_all(rank: int, size: int, mode: str) -> dict[str, Any]:
    """By line, its result or its error.

    Args:
        mode: "without" the remedies; with them "alone", "launched", or in a "job" of one process.
    """
    if mode != "launched":
        forget_the_launcher()
    if mode != "without":
        from smdistributed.dataparallel.tensorflow import job, remedies

        remedies.install()
        remedies.install()
        if mode == "job":
            job.init()
    model = K.Sequential([K.layers.Input((3,)), K.layers.Dense(1)])
    in_job = mode in ("launched", "job")

    def save(function: Callable[..., Any], name: str, **arguments: Any) -> str:
        return _save(model, function, name, in_job, **arguments)

    def save_model(path: str, **arguments: Any) -> None:
        K.models.save_model(model, path, **arguments)

    lines: dict[str, Callable[[], Any]] = {
        "variables": lambda: _variables(model),
        "compile": lambda: _compile(model, experimental_run_tf_function=False),
        "wrong keyword": lambda: _compile(model, no_such_thing=1),
        "reset": _reset,
        "save": lambda: save(model.save, "1"),
        "save_format": lambda: save(model.save, "1", save_format="tf"),
        "save_model": lambda: save(save_model, "1"),
        "save .keras": lambda: save(model.save, "1.keras"),
        "save .h5": lambda: save(model.save, "1.h5"),
        "save .v2": lambda: save(model.save, "model.v2"),
        "save h5 folder": lambda: save(model.save, "1", save_format="h5"),
    }
    return {name: _outcome(line) for name, line in lines.items()}


def _outcome(line: Callable[[], Any]) -> Any:
    try:
        return line()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _variables(model: Any) -> list[int]:
    optimizer = K.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    scaled = K.mixed_precision.LossScaleOptimizer(optimizer)
    scaled.build(model.trainable_variables)
    counts = []
    for each in (optimizer, scaled):
        assert list(each.variables()) == list(each.variables), "the same ones"
        counts.append(len(each.variables()))
    return counts


def _compile(model: Any, **arguments: Any) -> str:
    model.compile(optimizer="sgd", loss="mse", **arguments)
    return "compiled"


def _reset() -> float:
    metric = K.metrics.Mean()
    metric.update_state(4.0)
    metric.reset_states()
    return float(metric.result())


def _save(
    model: Any, function: Callable[..., Any], name: str, in_job: bool, **arguments: Any
) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        function(path, **arguments)
        if os.path.isfile(path):
            return "file"
        loaded = tf.saved_model.load(path)
        (output,) = loaded.signatures["serving_default"](tf.ones((2, 3))).values()
        assert abs(output.numpy() - model(tf.ones((2, 3))).numpy()).max() < 1e-6
        if in_job:
            function(path, **arguments)
            try:
                function(path, overwrite=False)
            except FileExistsError:
                pass
            else:
                return "overwritten"
        return "SavedModel"
