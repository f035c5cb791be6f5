# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who starts a TensorFlow script does not matter: `init()` finds rank, size and local rank.

smddprun, mpirun and the complete variables of torchrun start whole trainings in
`test_examples_tensorflow.py`; here are the other ways.

Source: dataparallel specification, sections 3.2 and 7.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from launchers import launch_command, run_to_end
from tensorflow_harness import run_tensorflow_script

SCRIPT = Path(__file__).with_name("placement_script.py")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
DEADLINE_S = 120.0

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


def places(output: str) -> list[dict[str, Any]]:
    """What the ranks printed, by rank."""
    found = [json.loads(text) for text in re.findall(r"placed: (\{.*?\})", output)]
    return sorted(found, key=lambda place: place["rank"])


def place(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "local_size": local_size,
        "gpu": ["first", "second"][local_rank],
        "LOCAL_RANK": str(local_rank),
        "sum": float("1" * size),
    }


def run_told(*told: Mapping[str, str]) -> list[dict[str, Any]]:
    """With variables of each rank instead of the harness's own; "" is as good as none."""
    outcomes = run_tensorflow_script([str(SCRIPT)], len(told), variables=told)
    return places("".join(outcome.output for outcome in outcomes))


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("mpirun smddprun", marks=pytest.mark.fresh)]
)
def test_launchers(launcher: str) -> None:
    command = [*launch_command(launcher, 2), str(SCRIPT)]
    ended = run_to_end(command, environment=QUIET, timeout_s=DEADLINE_S)
    assert ended.returncode == 0, ended.stdout
    assert places(ended.stdout) == [place(0, 2, 0, 2), place(1, 2, 1, 2)], ended.stdout


def test_on_two_hosts_the_local_rank_is_not_the_rank() -> None:
    """Without local variables: the hosts are told apart by their names."""
    no_local = {"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}
    found = run_told(*({**no_local, "SM_CURRENT_HOST": f"algo-{n}"} for n in (1, 1, 2, 2)))
    assert found == [place(rank, 4, rank % 2, 2) for rank in range(4)]


def test_srun() -> None:
    nothing_of_torch = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), "")
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NODEID": "0"}
    step |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NNODES": "1"}
    found = run_told(
        *(
            {**nothing_of_torch, **step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
            for rank in ("0", "1")
        )
    )
    assert found == [place(0, 2, 0, 2), place(1, 2, 1, 2)]


def test_without_a_launcher_there_is_one_process() -> None:
    (outcome,) = run_tensorflow_script([str(SCRIPT)], 1, is_launched=False)
    assert places(outcome.output) == [{**place(0, 1, 0, 1), "LOCAL_RANK": None}]
