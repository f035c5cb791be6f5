# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The guide's automatic and manual scripts, with real digits, beside one process of plain Keras.

The scripts are those of `examples/15_tensorflow_model_parallel`. Their parameters come from the
launcher. One of them imports the library first, the other one TensorFlow.

Source: TensorFlow modelparallel specification, section 9.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from launchers import launch_command, run_to_end
from preloaded import Preload
from tensorflow_harness import run_tensorflow_script

FOLDER = Path(__file__).resolve().parents[4] / "examples" / "15_tensorflow_model_parallel"
OBSERVED = Path(__file__).with_name("observed_script.py")
SCRIPTS = ("automatic", "manual")
MICROBATCHES = 4
STEPS = 20
SHORT = ("--epochs", "1", "--steps", str(STEPS))
RUN_TIMEOUT_S = 200.0

KERAS = {"Keras 3": "0", "legacy Keras": "1"}
PRELOADS = {"Keras 3": Preload.KERAS_3, "legacy Keras": Preload.LEGACY_KERAS}
LAUNCHERS = ("smddprun", "torchrun's variables", "mpirun")
BY_HAND = {"auto_partition": False, "default_partition": 0}
FRESH = pytest.mark.fresh  # with interpreters that have not imported TensorFlow already
# Each script, Keras, launcher and placement; the rest takes five times as long.
RUNS = [
    pytest.param("automatic", "Keras 3", "smddprun", "cluster", marks=FRESH),
    pytest.param("manual", "legacy Keras", "mpirun", "spread", marks=FRESH),
    pytest.param("automatic", "legacy Keras", "torchrun's variables", "spread"),
    pytest.param("manual", "Keras 3", "smddprun", "cluster"),
]
OTHER_RUNS = [
    pytest.param(script, keras, launcher, placement, marks=[pytest.mark.slow, FRESH])
    for script in SCRIPTS
    for keras in KERAS
    for launcher in LAUNCHERS
    for placement in ("cluster", "spread")
    if (script, keras, launcher, placement) not in [run.values for run in RUNS]
]

pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)


class Run(NamedTuple):
    """What a run has left: its losses, what it has printed, and by rank the values it holds."""

    losses: list[float]
    output: str
    values: list[Mapping[str, Any]]


def run(
    script: str,
    keras: str,
    launcher: str | None,
    *options: str,
    parameters: Mapping[str, Any] | None = None,
    plain: bool = False,
) -> Run:
    """A run that must succeed: of two processes, or of one without a launcher."""
    environment = {"TF_USE_LEGACY_KERAS": KERAS[keras], "TF_CPP_MIN_LOG_LEVEL": "3"}
    if parameters is not None:
        environment["SM_HP_MP_PARAMETERS"] = json.dumps(parameters)
    size = 1 if launcher is None else 2
    with tempfile.TemporaryDirectory() as folder:
        argv = [*(("--plain", str(MICROBATCHES)) if plain else ()), folder]
        argv = [str(OBSERVED), *argv, str(FOLDER / f"{script}.py"), *options]
        if launcher in (None, "torchrun's variables"):
            outcomes = run_tensorflow_script(
                argv,
                size,
                is_launched=launcher is not None,
                env=environment,
                deadline_s=RUN_TIMEOUT_S,
            )
            output = "".join(outcome.output for outcome in outcomes)
        else:
            command = [*launch_command(launcher, size, preload=PRELOADS[keras]), *argv]
            ended = run_to_end(command, environment=environment, timeout_s=RUN_TIMEOUT_S)
            assert ended.returncode == 0, ended.stdout
            output = ended.stdout
        values = [dict(np.load(f"{folder}/{rank}.npz")) for rank in range(size)]
    losses = [float(text) for text in re.findall(r"Loss: ([\d.e-]+)", output)]
    return Run(losses, output, values)


def parameters_of(script: str, placement: str = "cluster") -> dict[str, Any]:
    shared = {"partitions": 2, "microbatches": MICROBATCHES, "placement_strategy": placement}
    return shared | (BY_HAND if script == "manual" else {})


@pytest.fixture(scope="module")
def plain_keras() -> Callable[[str, str], Run]:
    """By script and Keras, what one process does in which nothing of the library is."""

    @functools.cache
    def get(script: str, keras: str) -> Run:
        return run(script, keras, None, *SHORT, plain=True)

    return get


def require_equal(found: Run, expected: Run) -> None:
    """Losses, weights and the accuracy: of the ranks together, what one process has."""
    assert len(expected.losses) == STEPS, expected.output
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    (everything,) = expected.values
    names = [set(values) - {"accuracy"} for values in found.values]
    assert sum(map(len, names)) == len(set().union(*names)), "a variable is on two ranks"
    assert set().union(*names) == set(everything) - {"accuracy"}
    for values in found.values:
        assert len(values) > 1, "a rank has no variable"
        for name, value in values.items():  # metrics count on every rank
            bound = 1e-5 * np.abs(everything[name]).max()
            np.testing.assert_allclose(value, everything[name], rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(("script", "keras", "launcher", "placement"), [*RUNS, *OTHER_RUNS])
def test_two_processes_do_what_one_of_plain_keras_does(
    script: str,
    keras: str,
    launcher: str,
    placement: str,
    plain_keras: Callable[[str, str], Run],
) -> None:
    parameters = parameters_of(script, placement)
    found = run(script, keras, launcher, *SHORT, parameters=parameters)
    require_equal(found, plain_keras(script, keras))
    if script == "manual":
        # `layer0` has the convolutions, and `layer1` the dense layers.
        kinds = [
            {name.split("/")[-2].partition("_")[0] for name in values if name != "accuracy"}
            for values in found.values
        ]
        assert kinds == [{"conv2d"}, {"dense"}]


def test_one_partition_does_what_plain_keras_does(
    plain_keras: Callable[[str, str], Run],
) -> None:
    parameters = {"partitions": 1, "microbatches": MICROBATCHES}
    found = run("automatic", "Keras 3", None, *SHORT, parameters=parameters)
    require_equal(found, plain_keras("automatic", "Keras 3"))


def test_the_trained_model_reads_digits() -> None:
    parameters = parameters_of("automatic")
    found = run("automatic", "Keras 3", "smddprun", "--epochs", "3", parameters=parameters)
    accuracies = [float(values["accuracy"]) for values in found.values]
    assert min(accuracies) > 0.95, found.output
    assert accuracies[0] == accuracies[1]
