# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Running smddprun and its relatives, and reading what the processes saw that they started."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from machine_speed import scaled

WAIT_S = scaled(90)

# Rank 1 of 2, both on this host, as each launcher tells it.
LAUNCHERS = {
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "MVAPICH": {
        "MV2_COMM_WORLD_RANK": "1",
        "MV2_COMM_WORLD_SIZE": "2",
        "MV2_COMM_WORLD_LOCAL_RANK": "1",
        "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "PMI": {
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
        "MPI_LOCALRANKID": "1",
        "MPI_LOCALNRANKS": "2",
    },
    "srun": {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_JOB_ID": "77",
    },
}

# Every variable of the dataparallel specification, section 3.1.
CONTRACT = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SMDATAPARALLEL_LOCAL_RANK",
    "SMDATAPARALLEL_SERVER_ADDR",
    "SMDATAPARALLEL_SERVER_PORT",
    "SMDATAPARALLEL_USE_SINGLENODE",
    "SAGEMAKER_INSTANCE_TYPE",
    "SM_FRAMEWORK_PARAMS",
}


def write(tmp_path: Path, code: str) -> Path:
    path = tmp_path / "job.py"
    path.write_text("import os, signal, sys, time\n" + code)
    return path


def program(name: str) -> list[str]:
    """The words that start one of our programs as its console script does."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    code = (
        f"import sys; sys.argv[0] = {name!r}\n"
        f"from {entry.module} import {entry.attr}; sys.exit({entry.attr}())"
    )
    return [sys.executable, "-c", code]


def run(
    environ: Mapping[str, str], *arguments: str | Path, name: str = "smddprun"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program(name), *map(str, arguments)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def reports(output: str) -> list[dict[str, dict[str, str]]]:
    """What `report` printed, by rank; the launcher's prefix is taken off."""
    found = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "{" in line]
    return sorted(found, key=lambda one: int(one["environ"]["RANK"]))
