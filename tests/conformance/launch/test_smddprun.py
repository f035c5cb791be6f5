# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun` and its relatives, statement by statement.

Source: dataparallel specification, section 10 (and 3.1, 3.4 and 4.6 where it points there). Words
in quotes are its table's. How else a job may end is in tests/multiprocess/test_smddprun.py.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from launchers import clean_environment

from smdistributed.launch import cli, environment

pytestmark = pytest.mark.timeout(120)

WAIT_S = 90

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

# Every variable of section 3.1.
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

# What the exec itself may change; Python adds LC_CTYPE where the locale is "C".
INCIDENTAL = {"LC_CTYPE", "_", "SHLVL", "PWD"}

REPORT = """
import json, os, sys
line = {"pid": os.getpid(), "environ": dict(os.environ), "arguments": sys.argv[1:]}
os.write(1, (json.dumps(line) + "\\n").encode())
"""


@pytest.fixture
def environ() -> dict[str, str]:
    environ = clean_environment()
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A script that prints its process id, environment and arguments as one line of JSON."""
    path = tmp_path / "report.py"
    path.write_text(REPORT)
    return path


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


# Row 1: "inside an mpirun/srun/PMI process (the toolkit's use: `mpirun ... smddprun python -m
# mpi4py train.py ...`): run discovery, set §3.1 variables, bind device, exec the command (same PID,
# so signals and exit status pass through)".


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
    signal.pause()
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
    assert changed <= INCIDENTAL


# Row 3: "no rank variables, `-np N` (default: visible accelerators, else 1): start N local
# processes as the launcher would, stream output, kill all on first failure, exit with the first
# failing status".


def test_np_starts_that_many_processes_with_the_contract(
    environ: dict[str, str], report: Path
) -> None:
    done = run(environ, "-np", "3", report)
    assert done.returncode == 0, done.stderr
    ranks = reports(done.stdout)
    assert [one["environ"]["RANK"] for one in ranks] == ["0", "1", "2"]
    for one in ranks:
        assert set(one["environ"]) >= CONTRACT
        assert one["environ"]["WORLD_SIZE"] == one["environ"]["LOCAL_WORLD_SIZE"] == "3"
    assert len({one["environ"]["MASTER_PORT"] for one in ranks}) == 1


class NoSupervisor:
    """Takes the place of what starts processes, and keeps what it was told."""

    environments: Sequence[Mapping[str, str]] = ()

    def __init__(
        self, command: Sequence[str], environments: Sequence[Mapping[str, str]], *_: object
    ):
        NoSupervisor.environments = environments

    def run(self) -> int:
        return 0


@pytest.fixture
def on_a_host_with(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Host:
    """Runs the command line in this process, as if the host had so many GPUs."""
    monkeypatch.setattr(cli, "Supervisor", NoSupervisor)
    # Undone with the rest: what the command line sets here.
    monkeypatch.setattr(os, "environ", environ)
    return Host(monkeypatch)


class Host:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, gpus: int, *arguments: str) -> Sequence[Mapping[str, str]]:
        def visible(environ: Mapping[str, str]) -> int:
            return 0 if environ.get("CUDA_VISIBLE_DEVICES") == "" else gpus

        self._monkeypatch.setattr(environment, "visible_accelerators", visible)
        assert cli.main(arguments) == 0
        return NoSupervisor.environments


@pytest.mark.parametrize(("gpus", "processes"), [(0, 1), (1, 1), (4, 4)])
def test_the_default_is_one_process_per_visible_accelerator_else_one(
    on_a_host_with: Host, gpus: int, processes: int
) -> None:
    assert len(on_a_host_with(gpus, "train.py")) == processes
    assert len(on_a_host_with(gpus, "-np", "2", "train.py")) == 2


def test_output_is_streamed(environ: dict[str, str], tmp_path: Path) -> None:
    """The line of a process that is still running arrives."""
    code = """
os.write(1, b"first\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.write(1, b"second\\n")
"""
    go = tmp_path / "go"
    process = subprocess.Popen(
        [*program("smddprun"), "-np", "1", str(write(tmp_path, code)), str(go)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], WAIT_S)[0]
        assert os.read(process.stdout.fileno(), 100) == b"[rank 0] first\n"
        go.touch()
        rest, _ = process.communicate(timeout=WAIT_S)
        assert rest == b"[rank 0] second\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("code", "status"),
    [("sys.exit(5)", 5), ("sys.exit(137)", 137), ("os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_the_first_failure_kills_all_and_gives_its_status(
    environ: dict[str, str], tmp_path: Path, code: str, status: int
) -> None:
    # All have written their process ids, by renaming a whole file, before rank 1 fails.
    wait_for_all = f"""
folder = {str(tmp_path)!r}
path = f"{{folder}}/pid{{os.environ['RANK']}}"
with open(path + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(path + ".part", path)
while len([name for name in os.listdir(folder) if name in ("pid0", "pid1", "pid2")]) < 3:
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    {code}
while True:
    signal.pause()
"""
    done = run(environ, "-np", "3", write(tmp_path, wait_for_all))
    assert done.returncode == status
    assert "rank 1" in done.stderr
    deadline = time.monotonic() + WAIT_S
    for rank in range(3):
        path = Path("/proc") / (tmp_path / f"pid{rank}").read_text()
        while path.exists():
            assert time.monotonic() < deadline, f"rank {rank} is still there"
            time.sleep(0.01)


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


def test_cpu_does_not_change_the_number_of_processes(on_a_host_with: Host) -> None:
    environments = on_a_host_with(4, "--cpu", "train.py")
    assert len(environments) == 4
    assert {one["CUDA_VISIBLE_DEVICES"] for one in environments} == {""}


# Section 3.4: "more processes than devices is allowed (oversubscription) with one warning".


@pytest.mark.parametrize(
    ("gpus", "arguments", "warns"),
    [
        (2, ("-np", "3"), True),
        (2, ("-np", "2"), False),
        (2, (), False),
        (0, ("-np", "3"), False),
        (2, ("-np", "3", "--cpu"), False),
    ],
)
def test_more_processes_than_devices_are_allowed_with_one_warning(
    on_a_host_with: Host,
    capsys: pytest.CaptureFixture[str],
    gpus: int,
    arguments: tuple[str, ...],
    warns: bool,
) -> None:
    assert len(on_a_host_with(gpus, *arguments, "train.py")) >= 1
    said = capsys.readouterr().err
    assert said.count("3 processes share 2 GPU(s)") == warns
