# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow examples as a user runs them: the guide's script, and Keras' `fit`.

The first one, unmodified, must end with the same weights on all ranks, and with those of one
process that trains on the joined batch, whatever starts the processes and whichever Keras it is.

Source: dataparallel specification, section 12, points 1 and 2.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launchers import launch_command, run_to_end
from preloaded import Preload, start_fresh
from tensorflow_harness import run_tensorflow_ranks, run_tensorflow_script

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MNIST_SCRIPT = EXAMPLES / "12_tensorflow_mnist" / "train.py"
FIT_SCRIPT = EXAMPLES / "13_keras_fit" / "train.py"

# Over all processes, so that any number of them does the same work.
BATCH_SIZE = 64
LEARNING_RATE = 0.001
STEPS = 12
RUN_TIMEOUT_S = 300.0

KERAS = {"Keras 3": "0", "legacy Keras": "1"}
PRELOADS = {"Keras 3": Preload.KERAS_3, "legacy Keras": Preload.LEGACY_KERAS}
LAUNCHERS = ("smddprun", "torchrun's variables", "mpirun")
# Each launcher, each Keras, each number of processes; the rest takes three times as long.
RUNS = [
    ("smddprun", 2, "Keras 3"),
    ("torchrun's variables", 4, "Keras 3"),
    ("mpirun", 2, "legacy Keras"),
]
OTHER_RUNS = [
    run
    for run in ((launcher, n, keras) for launcher in LAUNCHERS for n in (2, 4) for keras in KERAS)
    if run not in RUNS
]

pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)


def run(launcher: str | None, num_processes: int, script: Path, keras: str, *options: str) -> str:
    """Output of all processes of a run that must succeed; None starts one without a launcher."""
    environment = {"TF_USE_LEGACY_KERAS": KERAS[keras], "TF_CPP_MIN_LOG_LEVEL": "2"}
    if launcher in (None, "torchrun's variables"):
        outcomes = run_tensorflow_script(
            [str(script), *options],
            num_processes,
            is_launched=launcher is not None,
            env=environment,
            deadline_s=RUN_TIMEOUT_S,
        )
        return "".join(outcome.output for outcome in outcomes)
    ended = run_to_end(
        [*launch_command(launcher, num_processes, preload=PRELOADS[keras]), str(script), *options],
        environment=environment,
        timeout_s=RUN_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def same_work(num_processes: int) -> list[str]:
    """Options by which this many processes do what one would do."""
    return [
        *("--batch-size", str(BATCH_SIZE // num_processes)),
        *("--lr", str(LEARNING_RATE / num_processes)),
        *("--steps", str(STEPS), "--seed", "1", "--hash"),
    ]


def check_that_ranks_agree(output: str, num_processes: int) -> str:
    """The hash of the weights, which all ranks have printed."""
    found = re.findall(r"weights of rank (\d+): sha256 ([0-9a-f]{64})", output)
    assert sorted(int(rank) for rank, _ in found) == list(range(num_processes)), output
    assert len({digest for _, digest in found}) == 1, output
    return found[0][1]


def train_and_load(
    launcher: str | None, num_processes: int, keras: str
) -> tuple[str, Mapping[str, Any]]:
    """The output of the guide's script, and what is in the checkpoint of rank 0, by name."""
    with tempfile.TemporaryDirectory() as folder:
        options = [*same_work(num_processes), "--checkpoint-dir", folder]
        output = run(launcher, num_processes, MNIST_SCRIPT, keras, *options)
        (variables,) = run_tensorflow_ranks(load_checkpoint, 1, folder)
        return output, variables


def load_checkpoint(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    import tensorflow as tf

    assert Path(tf.train.latest_checkpoint(folder)) == Path(folder, "mnist-1")
    reader = tf.train.load_checkpoint(folder)
    names = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name: reader.get_tensor(name) for name in names}


@pytest.fixture(scope="module")
def one_process() -> Callable[[str], tuple[str, Mapping[str, Any]]]:
    """By Keras, the output and the checkpoint of one process that trains on the joined batch."""
    return functools.cache(functools.partial(train_and_load, None, 1))


@pytest.mark.parametrize(
    ("launcher", "num_processes", "keras"),
    [*RUNS, *(pytest.param(*run, marks=pytest.mark.slow) for run in OTHER_RUNS)],
)
def test_the_guides_script_gives_what_one_process_gives(
    launcher: str,
    num_processes: int,
    keras: str,
    one_process: Callable[[str], tuple[str, Mapping[str, Any]]],
) -> None:
    output, found = train_and_load(launcher, num_processes, keras)
    check_that_ranks_agree(output, num_processes)
    expected_output, expected = one_process(keras)

    assert found.keys() == expected.keys()
    # The weights, both moments of Adam of each, its learning rate and its count of steps.
    assert len(found) >= 3 * 8 + 2
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        # Room for rounding, after which a unit near zero may be on or off. Of the weights, a
        # fiftieth of what one step of Adam adds.
        is_weight = name.startswith("model/")
        bound = 0.02 * LEARNING_RATE if is_weight else 2e-3 * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=bound, err_msg=name)
    # Loss, of the first and the last step, and accuracy.
    figures = re.findall(r"loss ([\d.]+)|accuracy ([\d.]+)%", output)
    expected_figures = re.findall(r"loss ([\d.]+)|accuracy ([\d.]+)%", expected_output)
    assert len(figures) == 3, output
    assert f"{num_processes} process(es), {BATCH_SIZE // num_processes} images each" in output
    for pair, expected_pair in zip(figures, expected_figures, strict=True):
        # One test image may fall on the other side: another batch, another rounding.
        assert float("".join(pair)) == pytest.approx(float("".join(expected_pair)), abs=0.11)


def test_weights_that_differ_at_the_start_are_those_of_rank_0_after_the_first_batch() -> None:
    output = run("smddprun", 2, MNIST_SCRIPT, "Keras 3", "--steps", "2", "--hash")
    check_that_ranks_agree(output, 2)


def test_a_batch_larger_than_the_data_is_refused_with_the_way_out() -> None:
    (outcome,) = run_tensorflow_script(
        [str(MNIST_SCRIPT), "--batch-size", "4001"], 1, is_launched=False, check=False
    )
    assert outcome.error is not None
    assert outcome.error.type_name == "SystemExit"
    assert "Pass --batch-size 4000 or less." in outcome.error.message


def epochs(output: str) -> list[dict[str, float]]:
    """The figures of each epoch, which one rank has printed."""
    lines = re.findall(r"^.*val_loss: .*$", output, flags=re.MULTILINE)
    return [
        {name: float(value) for name, value in re.findall(r"(\w+): ([\d.]+)", line)}
        for line in lines
    ]


@pytest.mark.parametrize(
    ("num_processes", "keras"),
    [
        (2, "Keras 3"),
        pytest.param(4, "Keras 3", marks=pytest.mark.slow),
        pytest.param(2, "legacy Keras", marks=pytest.mark.slow),
        (4, "legacy Keras"),
    ],
)
def test_fit_prints_what_one_process_prints(num_processes: int, keras: str) -> None:
    outputs = []
    for launcher, n in (("smddprun", num_processes), (None, 1)):
        output = run(launcher, n, FIT_SCRIPT, keras, *same_work(n), "--epochs", "2")
        check_that_ranks_agree(output, n)
        outputs.append(output)
        (accuracy,) = re.findall(r"(\d+) process\(es\): test accuracy ([\d.]+)%", output)
        assert int(accuracy[0]) == n
        assert float(accuracy[1]) > 50
    found, expected = (epochs(output) for output in outputs)
    assert len(found) == len(expected) == 2
    for ours, theirs in zip(found, expected, strict=True):
        # Averages over the parts of the ranks are averages over all images.
        assert ours.keys() == theirs.keys() >= {"loss", "accuracy", "val_loss", "val_accuracy"}
        assert ours == pytest.approx(theirs, abs=2e-3)


def test_fit_saves_a_model_that_plain_keras_loads(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    options = ["--epochs", "1", "--steps", "2", "--save", str(path), "--hash"]
    digest = check_that_ranks_agree(run("smddprun", 2, FIT_SCRIPT, "Keras 3", *options), 2)
    start_fresh(True)  # preloaded processes have our modules
    assert run_tensorflow_ranks(digest_of_weights, 1, str(path)) == [digest]


def digest_of_weights(rank: int, world_size: int, path: str) -> str:
    import keras

    weights = keras.models.load_model(path).get_weights()
    assert "smdistributed.dataparallel" not in sys.modules
    return hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
