# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whole scripts: the guide's one with `hvd`, and one as published ones were, without it as well.

The former is `hybrid.py` of `examples/15_tensorflow_model_parallel`. Parameters come from the
launcher. That such training is right is what `test_hybrid.py` tests.

Source: TensorFlow modelparallel specification, section 9.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from launchers import launch_command, run_to_end
from preloaded import Preload
from tensorflow_harness import run_tensorflow_ranks, run_tensorflow_script

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[3] / "examples" / "15_tensorflow_model_parallel" / "hybrid.py"
PUBLISHED = HERE / "published_script.py"
RUN_TIMEOUT_S = 240.0
SHORT = ("--epochs", "1", "--steps", "2")
PRELOADS = {"0": Preload.KERAS_3, "1": Preload.LEGACY_KERAS}

pytestmark = pytest.mark.timeout(2 * RUN_TIMEOUT_S)


class Way(NamedTuple):
    """How a script is run.

    Attributes:
        launcher: None: the harness, with torchrun's variables.
        keras: of `TF_USE_LEGACY_KERAS`.
        parameters: for the launcher, beside those that all have.
    """

    script: Path
    options: Sequence[str]
    ranks: int
    launcher: str | None
    keras: str
    parameters: Mapping[str, Any]


def ways() -> list[Way]:
    """All of them: each value of each with some of the others."""
    scripts: list[tuple[Path, Sequence[str], Sequence[int]]] = [
        (EXAMPLE, (), (4, 8)),
        (PUBLISHED, ("--hvd", "first"), (4, 8)),
        (PUBLISHED, ("--hvd", "middle", "--first-batch", "python"), (4, 8)),
        (PUBLISHED, ("--hvd", "last"), (4, 8)),
        (PUBLISHED, ("--hvd", "none"), (2, 2, 2)),
    ]
    found = []
    for script, options, sizes in scripts:
        for ranks in sizes:
            for keras in ("0", "1"):
                number = len(found)
                bits = [number >> bit & 1 for bit in range(4)]
                parameters = {
                    "microbatches": (2, 4)[bits[0] ^ bits[2]],
                    "optimize": ("speed", "memory")[bits[1] ^ bits[0]],
                    "placement_strategy": ("cluster", "spread")[bits[0] ^ bits[1] ^ bits[3]],
                }
                launcher = ("smddprun", "mpirun", None)[number % 3]
                found.append(Way(script, options, ranks, launcher, keras, parameters))
    return found


def name_of(way: Way) -> str:
    """For a person who reads the names of tests."""
    options = [each for each in way.options if not each.startswith("--")]
    keras = ("keras-3", "tf-keras")[int(way.keras)]
    words = [way.script.stem, *options, str(way.ranks), way.launcher or "torchrun", keras]
    return "-".join([*words, *(str(each) for each in way.parameters.values())])


def run(way: Way, *options: str, folder: Path) -> list[Mapping[str, Any]]:
    """By rank, what the model holds at the end, and the accuracy."""
    parameters: dict[str, Any] = {"partitions": 2, **way.parameters}
    if way.ranks > 2:
        parameters["horovod"] = True
    environment = {
        "TF_USE_LEGACY_KERAS": way.keras,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "SM_HP_MP_PARAMETERS": json.dumps(parameters),
    }
    argv = [str(HERE / "observed_script.py"), str(folder), str(way.script), *way.options, *options]
    if way.script == PUBLISHED:
        argv += ["--checkpoint-dir", str(folder / "checkpoints")]
    if way.launcher is None:
        run_tensorflow_script(argv, way.ranks, env=environment, deadline_s=RUN_TIMEOUT_S)
    else:
        command = launch_command(way.launcher, way.ranks, preload=PRELOADS[way.keras])
        ended = run_to_end([*command, *argv], environment=environment, timeout_s=RUN_TIMEOUT_S)
        assert ended.returncode == 0, ended.stdout
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(way.ranks)]


def require_replicas(way: Way, found: Sequence[Mapping[str, Any]]) -> None:
    """Ranks with one partition have the same bits, and the two partitions nothing in common."""
    half = way.ranks // 2
    spread = way.parameters.get("placement_strategy") == "spread"
    parts = [
        [found[rank] for rank in range(way.ranks) if (rank // half if spread else rank % 2) == part]
        for part in range(2)
    ]
    for part in parts:
        for other in part:
            assert other.keys() == part[0].keys()
            for name, value in part[0].items():
                assert value.tobytes() == other[name].tobytes(), name
    one, other = (set(part[0]) - {"accuracy"} for part in parts)
    assert one
    assert other
    assert not one & other
    assert len({float(each["accuracy"]) for each in found}) == 1


def require_saved(folder: Path, found: Sequence[Mapping[str, Any]], epochs: int) -> None:
    """The latest checkpoint has, for plain TensorFlow, what all ranks together hold."""
    everything = {name: value for each in found for name, value in each.items()}
    del everything["accuracy"]
    (saved,) = run_tensorflow_ranks(values_of_checkpoint, 1, str(folder), epochs)
    of_model = [value for key, value in saved.items() if key.startswith("model/")]
    assert sorted(map(bits, of_model)) == sorted(map(bits, everything.values()))
    slots = [value for key, value in saved.items() if key.startswith("optimizer/")]
    assert len(slots) >= 2 * len(of_model), "two of Adam for each variable"


def bits(value: Any) -> tuple[tuple[int, ...], bytes]:
    """By which values are compared that have other names elsewhere."""
    return value.shape, value.tobytes()


def values_of_checkpoint(rank: int, size: int, folder: str, number: int) -> dict[str, Any]:
    """What plain TensorFlow reads of the latest one of a folder, which has this number."""
    import tensorflow as tf

    assert tf.train.latest_checkpoint(folder) == f"{folder}/ckpt-{number}"
    reader = tf.train.load_checkpoint(folder)
    keys = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {key: reader.get_tensor(key) for key in keys}


SAMPLES = [
    pytest.param(Way(EXAMPLE, (), 4, "smddprun", "0", {"microbatches": 2}), id="example"),
    pytest.param(
        Way(PUBLISHED, ("--hvd", "none"), 2, None, "1", {"placement_strategy": "spread"}),
        id="published",
    ),
]


@pytest.mark.parametrize("way", SAMPLES)
def test_replicas_stay_equal(way: Way, tmp_path: Path) -> None:
    found = run(way, *SHORT, folder=tmp_path)
    require_replicas(way, found)
    if way.script == PUBLISHED:
        require_saved(tmp_path / "checkpoints", found, 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param(way, id=name_of(way)) for way in ways()])
def test_replicas_read_digits(way: Way, tmp_path: Path) -> None:
    found = run(way, "--epochs", "4", folder=tmp_path)
    require_replicas(way, found)
    assert float(found[0]["accuracy"]) >= 0.95
    if way.script == PUBLISHED:
        require_saved(tmp_path / "checkpoints", found, 4)
