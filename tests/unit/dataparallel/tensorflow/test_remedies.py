# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of documented scripts on Keras 3, without the remedies and with them.

In processes of their own: the remedies stay in a process that has them.

Source: dataparallel specification, section 7.9.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("tensorflow")

_PROGRAM = """
import json, os, sys, tempfile
import tensorflow as tf

mode = sys.argv[1]
if mode != "without":
    from smdistributed.dataparallel.tensorflow import remedies
    remedies.install()
    remedies.install()
if mode == "job":
    from smdistributed.dataparallel.tensorflow import job
    job.init()

K = tf.keras
model = K.Sequential([K.layers.Input((3,)), K.layers.Dense(1)])
found = {}

def attempt(name, function):
    try:
        found[name] = function()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

def variables():
    optimizer = K.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    scaled = K.mixed_precision.LossScaleOptimizer(optimizer)
    scaled.build(model.trainable_variables)
    counts = []
    for each in (optimizer, scaled):
        assert list(each.variables()) == list(each.variables), "the same ones"
        counts.append(len(each.variables()))
    return counts

def compile_model():
    model.compile(optimizer="sgd", loss="mse", experimental_run_tf_function=False)
    return "compiled"

def wrong_keyword():
    model.compile(optimizer="sgd", loss="mse", no_such_thing=1)

def reset():
    metric = K.metrics.Mean()
    metric.update_state(4.0)
    metric.reset_states()
    return float(metric.result())

def save(function, name, **arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        function(path, **arguments)
        if os.path.isfile(path):
            return "file"
        loaded = tf.saved_model.load(path)
        (output,) = loaded.signatures["serving_default"](tf.ones((2, 3))).values()
        assert abs(output.numpy() - model(tf.ones((2, 3))).numpy()).max() < 1e-6
        if mode in ("launched", "job"):
            function(path, **arguments)
            try:
                function(path, overwrite=False)
            except FileExistsError:
                pass
            else:
                return "overwritten"
        return "SavedModel"

attempt("variables", variables)
attempt("compile", compile_model)
attempt("wrong keyword", wrong_keyword)
attempt("reset", reset)
attempt("save", lambda: save(model.save, "1"))
attempt("save_format", lambda: save(model.save, "1", save_format="tf"))
attempt("save_model", lambda: save(lambda path, **kw: K.models.save_model(model, path, **kw), "1"))
attempt("save .keras", lambda: save(model.save, "1.keras"))
attempt("save .h5", lambda: save(model.save, "1.h5"))
attempt("save .v2", lambda: save(model.save, "model.v2"))
attempt("save h5 folder", lambda: save(model.save, "1", save_format="h5"))
print(json.dumps(found))
"""
_OF_A_RANK = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "7777",
}


def _run(mode: str, **variables: str) -> dict[str, Any]:
    """What came of each line; one process for each combination of arguments."""
    return _run_once(mode, tuple(variables.items()))


@functools.cache
def _run_once(mode: str, variables: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, mode],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3", **dict(variables)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(150)
def test_keras_3_refuses_these_lines() -> None:
    found = _run("without")
    assert "'list' object is not callable" in found["variables"]
    assert "experimental_run_tf_function" in found["compile"]
    assert "reset_states" in found["reset"]
    for name in ("save", "save_model", "save .v2"):
        assert "Invalid filepath extension" in found[name]
    assert "`save_format` argument is deprecated" in found["save_format"]
    assert (found["save .keras"], found["save .h5"]) == ("file", "file")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["launched", "job"])
def test_with_remedies_they_work(mode: str) -> None:
    found = _run(mode, **(_OF_A_RANK if mode == "launched" else {}))
    # Iteration, rate, and two of Adam for each of two variables; around them scale and counter,
    # and the iteration and rate that loss scaling has for itself.
    assert found["variables"] == [6, 10]
    assert found["compile"] == "compiled"
    assert found["reset"] == 0.0
    assert found["save"] == found["save_format"] == found["save_model"] == "SavedModel"


@pytest.mark.timeout(150)
def test_remedies_are_narrow() -> None:
    found = _run("alone")  # not in a job
    assert found["compile"] == "compiled"
    assert "no_such_thing" in found["wrong keyword"]
    for name in ("save", "save_model", "save .v2"):
        assert "Invalid filepath extension" in found[name]
    found = _run("launched", **_OF_A_RANK)
    assert "Invalid filepath extension" in found["save .v2"]
    assert "`save_format` argument is deprecated" in found["save h5 folder"]
    assert (found["save .keras"], found["save .h5"]) == ("file", "file")


@pytest.mark.timeout(150)
def test_tf_keras_needs_none() -> None:
    found = _run("without", TF_USE_LEGACY_KERAS="1")
    assert found["variables"] == [5, 5]
    assert found["save"] == found["save_format"] == found["save_model"] == "SavedModel"
    assert found["compile"] == "compiled"
    assert found["reset"] == 0.0
    assert _run("alone", TF_USE_LEGACY_KERAS="1") == found
