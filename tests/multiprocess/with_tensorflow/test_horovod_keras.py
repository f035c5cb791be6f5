# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for Keras, against one process and the published rates.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tensorflow_harness import run_tensorflow_script

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("horovod_keras_ranks.py")
OF_TF_KERAS = [
    "check_momentum_correction",
    "check_passes_equal_one_process",
    "check_passes_change_nothing_but_the_last",
    "check_gradients_that_come_and_go",
    "check_passes_with_loss_scaling",
    "check_load_model",
]
FEW = [
    "check_the_warm_up",
    "check_passes_change_nothing_but_the_last",
    "check_gradients_that_come_and_go",
]

SCRIPTS = Path(__file__).with_name("horovod_scripts")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_horovod_with_keras_3(name: str) -> None:
    CHECKS.require(name, 2)


@pytest.mark.parametrize("name", OF_TF_KERAS)
def test_horovod_with_tf_keras(name: str) -> None:
    CHECKS.require(name, 2, OF_TF_KERAS, TF_USE_LEGACY_KERAS="1")


@pytest.mark.parametrize("name", FEW)
def test_three_ranks(name: str) -> None:
    CHECKS.require(name, 3, FEW)


def run(script: str, ranks: int, *arguments: object, keras: str = "0") -> list[str]:
    """What a script prints, by rank."""
    argv = [str(SCRIPTS / script), *map(str, arguments)]
    outcomes = run_tensorflow_script(argv, ranks, env={"TF_USE_LEGACY_KERAS": keras})
    return [outcome.output for outcome in outcomes]


def said(outputs: list[str], word: str) -> list[str]:
    return [line for each in outputs for line in re.findall(rf"^{word} (.*)$", each, re.M)]


@pytest.mark.parametrize(("ranks", "keras"), [(2, "0"), (2, "1")])
def test_the_mnist_script(ranks: int, keras: str, tmp_path: Path) -> None:
    run("mnist.py", 1, tmp_path, keras=keras)
    together = said(run("mnist.py", ranks, tmp_path, keras=keras), "weights")
    assert len(together) == ranks
    assert set(together) == {together[0]}
    with np.load(tmp_path / "1-0.npz") as one, np.load(tmp_path / f"{ranks}-0.npz") as other:
        for name in one.files:
            np.testing.assert_allclose(other[name], one[name], rtol=0, atol=2e-5)
    assert (tmp_path / "checkpoints-1.index").exists()


def test_ranks_that_begin_differently_become_alike(tmp_path: Path) -> None:
    weights = said(run("mnist.py", 3, tmp_path, "--own-seeds"), "weights")
    assert len(weights) == 3
    assert set(weights) == {weights[0]}


@pytest.mark.parametrize(("ranks", "keras"), [(3, "0"), (2, "1")])
def test_the_keras_mnist_script(ranks: int, keras: str, tmp_path: Path) -> None:
    outputs = run("keras_mnist.py", ranks, tmp_path, keras=keras)
    for word in ("weights", "losses", "rates"):
        found = said(outputs, word)
        assert len(found) == ranks
        assert set(found) == {found[0]}, word
    rates = [float(each) for each in said(outputs, "rates")[0].split()]
    np.testing.assert_allclose(rates, [0.001 * ranks] * 2, rtol=1e-6)
    assert "Epoch 1: the learning rate has warmed up to" in outputs[0]
    assert (tmp_path / "checkpoint-2.keras").exists()


@pytest.mark.parametrize("script", ["synthetic.py", "keras_synthetic.py"])
def test_the_synthetic_scripts(script: str) -> None:
    assert said(run(script, 2), "spread") == ["0.0", "0.0"]
