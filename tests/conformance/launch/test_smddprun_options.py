# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `smddprun`: exports, flags of mpirun, hosts, `--cpu`, and no command.

Source: dataparallel specification, section 10 (and 4.6 where it points there). Words in quotes are
its table's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conformance.launch.programs import LAUNCHERS, reports, run

# Row 4: "`-x NAME` / `-x NAME=VALUE`: mpirun-style exports, accepted before the command".


@pytest.mark.parametrize("launcher", [None, "Open MPI"])
def test_x_exports_in_both_forms(
    environ: dict[str, str], report: Path, launcher: str | None
) -> None:
    given = environ | {"KEPT": "a b", "CHANGED": "old"} | LAUNCHERS.get(launcher or "", {})
    exports = ("-x", "KEPT", "-x", "CHANGED=new=er", "-x", "EMPTY=", "-x", "ABSENT")
    done = run(given, *exports, sys.executable, report, "-x", "MINE=1")
    (seen,) = reports(done.stdout)
    assert seen["environ"].items() >= {"KEPT": "a b", "CHANGED": "new=er", "EMPTY": ""}.items()
    assert not {"ABSENT", "MINE"} & set(seen["environ"])
    assert seen["arguments"] == ["-x", "MINE=1"]
    assert "-x ABSENT: it is not set here" in done.stderr


# Row 5: "unknown mpirun flags before the command: ignored with a warning when the arity is known,
# else error naming the flag".


@pytest.mark.parametrize(
    "flags",
    [
        "-mca btl tcp",
        "--mca btl tcp",
        "--tag-output",
        "--oversubscribe",
        "-bind-to none",
        "--bind-to none",
        "-map-by slot",
        "--map-by slot",
    ],
)
def test_mpirun_flags_of_known_arity_are_ignored_with_a_warning(
    environ: dict[str, str], report: Path, flags: str
) -> None:
    done = run(environ, *flags.split(), "-np", "1", report)
    assert done.returncode == 0, done.stderr
    assert len(reports(done.stdout)) == 1
    assert f"left out, as they have no meaning here: {flags}" in done.stderr


@pytest.mark.parametrize("flag", ["--frobnicate", "-wdir", "-N"])
def test_other_flags_are_errors_that_name_the_flag(
    environ: dict[str, str], report: Path, flag: str
) -> None:
    done = run(environ, flag, report)
    assert done.returncode == 2
    assert f"unknown flag {flag!r}" in done.stderr
    assert not done.stdout


# Row 6: "no command: usage on stderr, status 2".


@pytest.mark.parametrize("arguments", [(), ("-np", "2"), ("--",), ("-x", "A=1", "--cpu")])
@pytest.mark.parametrize("name", ["smddprun", "smddpsinglenode", "smddp_singlenode_dev"])
def test_without_a_command_there_is_usage_and_status_2(
    environ: dict[str, str], name: str, arguments: tuple[str, ...]
) -> None:
    done = run(environ, *arguments, name=name)
    assert done.returncode == 2
    assert "usage: smddp" in done.stderr
    assert not done.stdout


# The synopsis: "[-H host[:slots],... | --hostfile F] [--] COMMAND [ARG...]".


def test_hosts_and_their_slots(environ: dict[str, str], report: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    for arguments in (("-H", "localhost:2"), ("--hostfile", str(hosts))):
        done = run(environ, *arguments, "--", report)
        assert len(reports(done.stdout)) == 2, done.stderr
    done = run(environ, "-H", "localhost:2", "-np", "1", report)
    assert len(reports(done.stdout)) == 1
    elsewhere = run(environ, "-H", "192.0.2.1:2", report)
    assert elsewhere.returncode == 2
    assert "192.0.2.1" in elsewhere.stderr
    assert "mpirun -np 8 -H a:4,b:4 -x MASTER_ADDR=a smddprun" in elsewhere.stderr


def test_two_dashes_end_the_options(environ: dict[str, str], tmp_path: Path) -> None:
    odd = tmp_path / "-odd"
    odd.write_text("#!/bin/sh\necho ran $1\n")
    odd.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), environ["PATH"]])
    done = run(environ | {"PATH": path}, "-np", "1", "--", "-odd", "--")
    assert done.stdout == "[rank 0] ran --\n", done.stderr


# Section 4.6: "`smddprun --cpu` sets `full`".


@pytest.mark.parametrize("launcher", [None, "Open MPI"])
def test_cpu_sets_full_and_hides_cuda(
    environ: dict[str, str], report: Path, launcher: str | None
) -> None:
    given = environ | {"CUDA_VISIBLE_DEVICES": "0,1"} | LAUNCHERS.get(launcher or "", {})
    (seen,) = reports(run(given, "--cpu", sys.executable, report).stdout)
    assert seen["environ"]["SMDDP_CPU_SHIM"] == "full"
    assert seen["environ"]["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["environ"]["ACCELERATE_TORCH_DEVICE"] == "cpu"
    exports = ("-x", "SMDDP_CPU_SHIM=auto")
    (seen,) = reports(run(given, "--cpu", *exports, sys.executable, report).stdout)
    assert seen["environ"]["SMDDP_CPU_SHIM"] == "auto"
