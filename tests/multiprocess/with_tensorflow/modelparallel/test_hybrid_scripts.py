# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whole scripts with `hvd`: the guide's third one, and one as published ones were.

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
from tensorflow_harness import run_tensorflow_script

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
    """

    script: Path
    options: Sequence[str]
    ranks: int
    launcher: str | None
    keras: str
    parameters: Mapping[str, Any]


def ways() -> list[Way]:
    """All of them: each value of each with some of the others."""
    found = []
    scripts = [
        (EXAMPLE, ()),
        (PUBLISHED, ("--hvd", "first")),
        (PUBLISHED, ("--hvd", "middle", "--first-batch", "python")),
        (PUBLISHED, ("--hvd", "last")),
    ]
    number = 0
    for script, options in scripts:
        for ranks in (4, 8):
            for keras in ("0", "1"):
                bits = [number >> bit & 1 for bit in range(4)]
                number += 1
                parameters = {
                    "microbatches": (2, 4)[bits[0] ^ bits[2]],
                    "optimize": ("speed", "memory")[bits[1] ^ bits[0]],
                    "placement_strategy": ("cluster", "spread")[bits[0] ^ bits[1] ^ bits[3]],
                }
                launcher = (None, "smddprun", "mpirun")[number % 3]
                found.append(Way(script, options, ranks, launcher, keras, parameters))
    return found


def run(way: Way, *options: str, folder: Path) -> list[Mapping[str, Any]]:
    """By rank, what the model holds at the end, and the accuracy."""
    parameters = {"partitions": 2, "horovod": True, **way.parameters}
    environment = {
        "TF_USE_LEGACY_KERAS": way.keras,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "SM_HP_MP_PARAMETERS": json.dumps(parameters),
    }
    argv = [str(HERE / "observed_script.py"), str(folder), str(way.script), *way.options, *options]
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
    spread = way.parameters["placement_strategy"] == "spread"
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


SAMPLES = [
    pytest.param(EXAMPLE, (), "smddprun", "0", "cluster", id="example"),
    pytest.param(PUBLISHED, (), None, "1", "spread", id="published", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("script", "options", "launcher", "keras", "placement"), SAMPLES)
def test_replicas_stay_equal(
    script: Path,
    options: Sequence[str],
    launcher: str | None,
    keras: str,
    placement: str,
    tmp_path: Path,
) -> None:
    parameters = {"microbatches": 2, "placement_strategy": placement}
    way = Way(script, options, 4, launcher, keras, parameters)
    require_replicas(way, run(way, *SHORT, folder=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ways())))
def test_replicas_read_digits(number: int, tmp_path: Path) -> None:
    way = ways()[number]
    found = run(way, "--epochs", "4", folder=tmp_path)
    require_replicas(way, found)
    assert float(found[0]["accuracy"]) >= 0.95
