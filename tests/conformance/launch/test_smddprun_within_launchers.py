# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun` in a process of mpirun, srun or torchrun: it sets variables and becomes the command.

Source: dataparallel specification, section 10 (and 3.1 where it points there). Words in quotes are
its table's.
"""

from __future__ import annotations

import json
import signal
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

# What the exec itself may change; Python adds LC_CTYPE where the locale is "C".
INCIDENTAL = {"LC_CTYPE", "_", "SHLVL", "PWD"}


# Row 1: "inside an mpirun/srun/PMI process (the toolkit's use: `mpirun ... smddprun python -m
# mpi4py train.py ...`): run discovery, set the variables of section 3.1, exec the command (same
# PID, so signals and exit status pass through)".


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_inside_a_launchers_process_the_variables_are_set_and_the_command_takes_over(
    environ: dict[str, str], report: Path, launcher: str
) -> None:
    arguments = [*program("smddprun"), sys.executable, "-u", str(report), "--epochs", "1"]
    process = subprocess.Popen(
        arguments, env=environ | LAUNCHERS[launcher], stdout=subprocess.PIPE, text=True
    )
    output, _ = process.communicate(timeout=WAIT_S)
    (seen,) = reports(output)
    assert process.returncode == 0
    assert seen["pid"] == process.pid
    assert seen["arguments"] == ["--epochs", "1"]
    found = seen["environ"]
    assert set(found) >= CONTRACT
    expected = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert found.items() >= expected.items()
    assert found["SMDATAPARALLEL_LOCAL_RANK"] == "1"
    assert json.loads(found["SM_FRAMEWORK_PARAMS"])["sagemaker_distributed_dataparallel_enabled"]


def test_the_device_is_bound_by_its_index_and_all_stay_visible(
    environ: dict[str, str], report: Path
) -> None:
    # Scripts call `set_device(LOCAL_RANK)`, which needs all devices visible.
    given = environ | LAUNCHERS["Open MPI"] | {"CUDA_VISIBLE_DEVICES": "2,3"}
    (seen,) = reports(run(given, sys.executable, report).stdout)
    assert seen["environ"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert seen["environ"]["LOCAL_RANK"] == "1"


@pytest.mark.parametrize("status", [0, 3, 137])
def test_the_exit_status_passes_through_an_exec(
    environ: dict[str, str], tmp_path: Path, status: int
) -> None:
    # "Exit status 137 must be preserved: the toolkit labels it out-of-memory."
    script = write(tmp_path, f"sys.exit({status})")
    done = run(environ | LAUNCHERS["PMI"], sys.executable, script)
    assert done.returncode == status


def test_signals_pass_through_an_exec(environ: dict[str, str], tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
os.write(1, b"ready\\n")
while True:
    time.sleep(0.1)  # a signal that comes right before signal.pause() would not end it
"""
    process = subprocess.Popen(
        [*program("smddprun"), sys.executable, str(write(tmp_path, code))],
        env=environ | LAUNCHERS["srun"],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 21
    finally:
        process.kill()
        process.communicate()


def test_death_by_a_signal_passes_through_an_exec(environ: dict[str, str], tmp_path: Path) -> None:
    script = write(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    done = run(environ | LAUNCHERS["Open MPI"], sys.executable, script)
    assert done.returncode == -signal.SIGKILL  # which a shell shows as 137


def test_a_module_in_front_of_the_script_is_passed_on(
    environ: dict[str, str], report: Path
) -> None:
    # "the toolkit's use: mpirun ... smddprun python -m mpi4py train.py ..."; mpi4py's place is
    # taken by a module of the standard library that runs a script in the same way.
    command = (sys.executable, "-m", "trace", "--count", "--missing", "-C", report.parent / "cover")
    done = run(environ | LAUNCHERS["Open MPI"], *command, report, "--epochs", "1")
    (seen,) = reports(done.stdout)
    assert seen["arguments"] == ["--epochs", "1"]
    assert seen["environ"]["RANK"] == "1"


def test_mpirun_flags_before_the_command_are_ignored_with_a_warning_on_an_exec(
    environ: dict[str, str], report: Path
) -> None:
    flags = ("-mca", "btl", "self", "--tag-output")
    done = run(environ | LAUNCHERS["Open MPI"], *flags, sys.executable, report, "--epochs", "1")
    (seen,) = reports(done.stdout)
    assert seen["arguments"] == ["--epochs", "1"]
    assert "-mca" in done.stderr
    assert "--tag-output" in done.stderr
    assert "left out" in done.stderr


# Row 2: "torchrun variables already present: exec unchanged".


def test_torchruns_variables_are_left_as_they_are(environ: dict[str, str], report: Path) -> None:
    given = environ | {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "192.0.2.7",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "job",
    }
    process = subprocess.Popen(
        [*program("smddprun"), sys.executable, str(report)], env=given, stdout=subprocess.PIPE
    )
    output, _ = process.communicate(timeout=WAIT_S)
    (seen,) = reports(output.decode())
    assert seen["pid"] == process.pid
    changed = {name for name, _ in set(given.items()) ^ set(seen["environ"].items())}
    assert changed - INCIDENTAL == {"SMDDP_HOROVOD"}  # which says nothing of the launcher
    assert seen["environ"]["SMDDP_HOROVOD"] == "stand-in"
