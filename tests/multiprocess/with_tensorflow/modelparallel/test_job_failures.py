# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that never come, and jobs under launchers (specification, sections 2 and 4.7)."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from launchers import launch_command, run_to_end
from machine_speed import scaled
from preloaded import Preload
from tensorflow_harness import run_tensorflow_ranks, run_tensorflow_script

HERE = Path(__file__).parent
RANKS = HERE / "job_failures.py"
SCRIPT = HERE / "job_script.py"
PARAMETERS = "SM_HP_MP_PARAMETERS"
DEADLINE_S = 120.0

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


def test_a_rank_that_dies_ends_the_waiting_of_the_others() -> None:
    first, second, dead = run_tensorflow_ranks(
        f"{RANKS}:a_rank_dies", 3, check=False, deadline_s=DEADLINE_S
    )
    assert dead.exit_code == -signal.SIGKILL
    for outcome in (first, second):
        assert outcome.ok, outcome.output
        text, waited_s = outcome.value
        assert "rank 2" in text
        assert waited_s < scaled(2.0)


def test_a_message_that_never_comes_ends_with_the_timeout(tmp_path: Path) -> None:
    env = {"SMDDP_TIMEOUT_SECONDS": str(scaled(2.0))}
    text, _ = run_tensorflow_ranks(
        f"{RANKS}:nobody_sends", 2, tmp_path / "given_up", env=env, deadline_s=DEADLINE_S
    )
    assert "rank 1" in text


def places(output: str) -> list[dict[str, Any]]:
    """What the ranks printed, by rank."""
    found = [json.loads(text) for text in re.findall(r"placed: (\{.*?\})", output)]
    return sorted(found, key=lambda place: place["rank"])


@pytest.mark.parametrize("launcher", ["smddprun", pytest.param("mpirun", marks=pytest.mark.fresh)])
def test_launchers_and_all_parameters_from_them(launcher: str) -> None:
    """The variables of torchrun are what all other ranks of these tests find."""
    command = [*launch_command(launcher, 2, preload=Preload.KERAS_3), str(SCRIPT)]
    parameters = json.dumps({"partitions": 2, "microbatches": 3})
    environment = {PARAMETERS: parameters, "TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = run_to_end(command, environment=environment, timeout_s=DEADLINE_S)
    assert ended.returncode == 0, ended.stdout
    common = {"mp": [0, 1], "all": [0, 1], "microbatches": 3}
    assert places(ended.stdout) == [
        {"rank": rank, "local": [rank, 2], "dp": [rank], **common} for rank in range(2)
    ], ended.stdout


def test_without_a_launcher_there_is_one_process() -> None:
    (outcome,) = run_tensorflow_script([str(SCRIPT)], 1, is_launched=False)
    alone = {"rank": 0, "local": [0, 1], "mp": [0], "dp": [0], "all": [0], "microbatches": 1}
    assert places(outcome.output) == [alone]
