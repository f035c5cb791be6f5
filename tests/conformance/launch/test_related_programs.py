# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The programs beside `smddprun`: `smddpsinglenode`, `smddp_singlenode_dev` and `smddpmprun`.

Source: dataparallel specification, section 10. Words in quotes are its table's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.launch.programs import (
    CONTRACT,
    LAUNCHERS,
    WAIT_S,
    program,
    reports,
    run,
    write,
)

# "it MUST be on PATH of the container image".


@pytest.mark.parametrize(
    "name", ["smddprun", "smddpsinglenode", "smddp_singlenode_dev", "smddpmprun"]
)
def test_the_program_is_installed_beside_python(name: str) -> None:
    """`which smddprun` decides whether the toolkit uses it."""
    assert shutil.which(name, path=str(Path(sys.executable).parent)) is not None


# "`smddpsinglenode` and `smddp_singlenode_dev` = `smddprun` forced to one host".


@pytest.mark.parametrize("name", ["smddpsinglenode", "smddp_singlenode_dev"])
def test_the_single_node_programs_start_ranks_on_one_host(
    environ: dict[str, str], report: Path, name: str
) -> None:
    started = run(environ, "-np", "2", report, name=name)
    assert len(reports(started.stdout)) == 2, started.stderr
    joined = run(environ | LAUNCHERS["Open MPI"], sys.executable, report, name=name)
    assert len(reports(joined.stdout)) == 1, joined.stderr
    two_hosts = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    sagemaker = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
    given = environ | LAUNCHERS["Open MPI"] | two_hosts | sagemaker
    refused = run(given, sys.executable, report, name=name)
    assert refused.returncode == 2
    assert "this job spans 2 hosts; expected one" in refused.stderr
    # Where the host list alone speaks of two hosts, one of them is what was asked for.
    alone = run(environ | sagemaker, "-np", "1", report, name=name)
    assert len(reports(alone.stdout)) == 1, alone.stderr


# "`smddpmprun -i TYPE [--allow-bypass] COMMAND...` [...] execs the command after setting the same
# variables".


@pytest.mark.parametrize("bypass", [(), ("--allow-bypass",)])
def test_smddpmprun_sets_the_variables_and_execs(
    environ: dict[str, str], report: Path, bypass: tuple[str, ...]
) -> None:
    arguments = ["-i", "ml.p4d.24xlarge", *bypass, sys.executable, str(report), "-i", "x"]
    process = subprocess.Popen(
        [*program("smddpmprun"), *arguments],
        env=environ | LAUNCHERS["Open MPI"],
        stdout=subprocess.PIPE,
    )
    output, _ = process.communicate(timeout=WAIT_S)
    (seen,) = reports(output.decode())
    assert seen["pid"] == process.pid
    assert set(seen["environ"]) >= CONTRACT
    assert seen["environ"]["SAGEMAKER_INSTANCE_TYPE"] == "ml.p4d.24xlarge"
    assert seen["arguments"] == ["-i", "x"]


def test_smddpmprun_preserves_137_and_asks_for_what_is_missing(
    environ: dict[str, str], tmp_path: Path
) -> None:
    script = write(tmp_path, "sys.exit(137)")
    done = run(environ, "-i", "ml.x", sys.executable, script, name="smddpmprun")
    assert done.returncode == 137
    for arguments in (("-i", "ml.x"), (sys.executable,), ()):
        done = run(environ, *arguments, name="smddpmprun")
        assert done.returncode == 2
        assert "usage: smddpmprun" in done.stderr
