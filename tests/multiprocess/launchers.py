# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Start a script as a user does, under any of the launchers, and bring it to an end.

`run_ranks` of the harness is quicker and says more; this is for tests whose subject is a launcher,
or a script that a user runs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from machine_speed import scaled
from preloaded import Preload, python

LAUNCHERS = ("smddprun", "torchrun", "mpirun", "mpirun smddprun")

# Variables by which the test run itself may have been started as a rank of something larger, and
# settings of the person who runs it.
_NOT_PASSED_ON = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT)$"
    r"|(OMPI_|MV2_|MPI_LOCAL|PMI_|PMIX_|PRTE_|SLURM_|SMDATAPARALLEL_|SMDDP_|TORCHELASTIC_|SM_)"
    r"|(ACCELERATE_|PL_|DS_)"
)
_MPIRUN_VARIABLES = {
    # A container's only user is often root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def launch_command(
    launcher: str, num_processes: int, *options: str, preload: Preload = Preload.TORCH
) -> list[str]:
    """The words that go before the script's path to run it in `num_processes` processes.

    Args:
        launcher: one of `LAUNCHERS`.
        num_processes: on this machine; may be more than it has cores.
        options: for a `smddprun` that starts the processes; the others take none.
        preload: what the processes find imported, unless the test is marked `fresh`.
    """
    number, interpreter = str(num_processes), python(preload)
    if launcher == "smddprun":
        return [_program("smddprun"), *options, "-np", number, interpreter]
    assert not options, f"{launcher} takes no options of smddprun"
    if launcher == "torchrun":
        # --standalone picks a free port.
        torchrun = [interpreter, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, "--nproc-per-node", number]
    mpirun = [_program("mpirun"), "-np", number, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    if launcher == "mpirun smddprun":
        mpirun.append(_program("smddprun"))
    return [*mpirun, interpreter]


def _program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    assert found is not None, f"no {name} beside {sys.executable}; run `make env` first"
    return found


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user's shell: ours without what a launcher or a person has set.

    The environment of this Python is active in it, so its programs are found first.
    """
    kept = {name: text for name, text in os.environ.items() if not _NOT_PASSED_ON.match(name)}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "OMP_NUM_THREADS": "1", **(extra or {})}


def run_to_end(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run in a session of its own, of which nothing is left afterwards, whatever happens.

    `environment` is added to `clean_environment`. Output and errors come back in one text. A
    command that misses its time is a failure of the test, which shows what it had printed.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env={**_MPIRUN_VARIABLES, **clean_environment(environment)},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=scaled(timeout_s))
    except subprocess.TimeoutExpired:
        # A launcher on its way out ends its processes; give it the time to do so.
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        pytest.fail(f"no end within {scaled(timeout_s):.0f} s: {' '.join(command)}\n{output}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, output)


def process_state(pid: int) -> str | None:
    """The letter by which Linux tells a process's state, such as `S` or `T`; `None` once it ended.

    One that has ended and was not reaped yet counts as ended.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if state in "ZX" else state


def wait_until_gone(pids: Sequence[int], timeout_s: float = 60.0) -> None:
    """Waits until all these processes have ended; fails the test if they do not in time."""
    deadline = time.monotonic() + scaled(timeout_s)
    while left := [pid for pid in pids if process_state(pid) is not None]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)
