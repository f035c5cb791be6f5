# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun` by itself: it starts processes, as many as there should be, and ends them.

Source: dataparallel specification, section 10 (and 3.4 and 4.6 where it points there). Words in
quotes are its table's. How else a job may end is in `tests/multiprocess/test_smddprun.py`.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from smdistributed.launch import cli, environment
from tests.conformance.launch.programs import CONTRACT, WAIT_S, program, reports, run, write

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
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *_: object,
        **__: object,
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
