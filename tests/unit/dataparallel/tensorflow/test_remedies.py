# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of documented scripts on Keras 3, without the remedies and with them.

In ranks of their own: the remedies stay in a process that has them.

Source: dataparallel specification, section 7.9.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from tensorflow_harness import run_tensorflow_ranks

RANKS = Path(__file__).with_name("remedies_ranks.py")


@functools.cache
def _run(mode: str, legacy_keras: str = "0") -> dict[str, Any]:
    """What came of each line."""
    found: dict[str, Any]
    (found,) = run_tensorflow_ranks(
        f"{RANKS}:attempt_all", 1, mode, env={"TF_USE_LEGACY_KERAS": legacy_keras}
    )
    return found


def test_keras_3_refuses_these_lines() -> None:
    found = _run("without")
    assert "'list' object is not callable" in found["variables"]
    assert "experimental_run_tf_function" in found["compile"]
    assert "reset_states" in found["reset"]
    for name in ("save", "save_model", "save .v2"):
        assert "Invalid filepath extension" in found[name]
    assert "`save_format` argument is deprecated" in found["save_format"]
    assert (found["save .keras"], found["save .h5"]) == ("file", "file")


@pytest.mark.parametrize("mode", ["launched", "job"])
def test_with_remedies_they_work(mode: str) -> None:
    found = _run(mode)
    # Iteration, rate, and two of Adam for each of two variables; around them scale and counter,
    # and the iteration and rate that loss scaling has for itself.
    assert found["variables"] == [6, 10]
    assert found["compile"] == "compiled"
    assert found["reset"] == 0.0
    assert found["save"] == found["save_format"] == found["save_model"] == "SavedModel"


def test_remedies_are_narrow() -> None:
    found = _run("alone")  # not in a job
    assert found["compile"] == "compiled"
    assert "no_such_thing" in found["wrong keyword"]
    for name in ("save", "save_model", "save .v2"):
        assert "Invalid filepath extension" in found[name]
    found = _run("launched")
    assert "Invalid filepath extension" in found["save .v2"]
    assert "`save_format` argument is deprecated" in found["save h5 folder"]
    assert (found["save .keras"], found["save .h5"]) == ("file", "file")


def test_tf_keras_needs_none() -> None:
    found = _run("without", "1")
    assert found["variables"] == [5, 5]
    assert found["save"] == found["save_format"] == found["save_model"] == "SavedModel"
    assert found["compile"] == "compiled"
    assert found["reset"] == 0.0
    assert _run("alone", "1") == found
