# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of Horovod's examples for TensorFlow and Keras: one process's weights, equal on all.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tensorflow_harness import run_tensorflow_script

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S

SCRIPTS = Path(__file__).with_name("horovod_scripts")
# (ranks, TF_USE_LEGACY_KERAS)
SIZES = [(2, "1"), (3, "0")]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def run(script: str, ranks: int, *arguments: object, keras: str = "0") -> list[str]:
    """What a script prints, by rank."""
    argv = [str(SCRIPTS / script), *map(str, arguments)]
    outcomes = run_tensorflow_script(argv, ranks, env={"TF_USE_LEGACY_KERAS": keras})
    return [outcome.output for outcome in outcomes]


def said(outputs: list[str], word: str) -> list[str]:
    return [line for each in outputs for line in re.findall(rf"^{word} (.*)$", each, re.M)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The weights that one process trains by the MNIST script; alike with either Keras."""
    folder = tmp_path_factory.mktemp("alone")
    run("mnist.py", 1, folder)
    with np.load(folder / "1-0.npz") as weights:
        return [weights[name] for name in weights.files]


@pytest.mark.parametrize(("ranks", "keras"), SIZES)
def test_the_mnist_script(alone: list[np.ndarray], ranks: int, keras: str, tmp_path: Path) -> None:
    together = said(run("mnist.py", ranks, tmp_path, keras=keras), "weights")
    assert len(together) == ranks
    assert set(together) == {together[0]}
    with np.load(tmp_path / f"{ranks}-0.npz") as weights:
        for name, expected in zip(weights.files, alone, strict=True):
            np.testing.assert_allclose(weights[name], expected, rtol=0, atol=2e-5)
    assert (tmp_path / "checkpoints-1.index").exists()


@pytest.mark.parametrize(("ranks", "keras"), SIZES)
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


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("script", ["synthetic.py", "keras_synthetic.py"])
def test_the_synthetic_scripts(script: str, ranks: int) -> None:
    assert said(run(script, ranks), "spread") == ["0.0"] * ranks
