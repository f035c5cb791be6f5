# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a job on Slurm: `python -m ...slurm.runner FOLDER`, on its first node.

Slurm may end it and start it again, on other nodes: it goes on with what is in the job's directory.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.fate import Fate
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.backends.runner import JobRunner
from smdistributed.launch.backends.slurm.commands import SlurmJob, State, look_at, requeue
from smdistributed.launch.backends.slurm.files import SlurmFiles, note_interruption
from smdistributed.launch.backends.slurm.node import Pulse
from smdistributed.launch.backends.slurm.nodes import SlurmNodes
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["main"]

# Who has submitted the job writes its number down before this.
_LOCK_S = 30.0
_LOOK_S = 0.05
_PARENT_S = 1.0


class _Attempts:
    """Makes the nodes of each attempt, and knows what Slurm does with the job.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._before: SlurmNodes | None = None

    def nodes(self) -> SlurmNodes:
        """For the next attempt."""
        self._before = SlurmNodes(self._job, needs_others=self._has_lost_node())
        return self._before

    def _has_lost_node(self) -> bool:
        return self._before is not None and self._before.has_lost_node

    def fate(self) -> Fate:
        """What becomes of this process."""
        number = os.environ["SLURM_JOB_ID"]
        try:
            fate = _fate_of(look_at(number))
            is_spot = Limits.of(self._job.read().request).is_spot
            if fate is Fate.STAYS and is_spot and self._has_lost_node():
                requeue(number)  # what spot instances are for: it starts again on others
                return Fate.TAKEN_AWAY
        except BackendError:  # it says nothing, so nothing is known but what was asked for
            return Fate.STAYS
        return fate


def _fate_of(known: SlurmJob) -> Fate:
    if known.is_preempted or known.restarts > int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return Fate.TAKEN_AWAY
    if known.reason == "TimeLimit" or known.state is State.TIMEOUT:
        return Fate.OUT_OF_TIME
    is_ending = known.said == "COMPLETING" or known.state.is_over
    return Fate.STOPPED if is_ending else Fate.STAYS


def _end_with(step_daemon: int) -> None:
    """Ends this process, as if it were killed, once its parent is gone.

    Slurm counts it as gone then, and may start another one beside it.
    """
    while os.getppid() == step_daemon:
        time.sleep(_PARENT_S)
    print("the daemon of this process's step, slurmstepd, is gone.", file=sys.stderr, flush=True)
    os._exit(1)


def main() -> int:
    """Runs the job of the directory that is the argument."""
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent", daemon=True).start()
    path = Path(sys.argv[1])
    if not path.is_dir():
        print(
            f"{path} is not there; expected the job's directory, on a file system that all nodes"
            " share. Set SMD_HOME to such a place.",
            file=sys.stderr,
        )
        return 1
    job = JobDirectory(path)
    until = time.monotonic() + _LOCK_S
    while not job.lock.acquire():
        if time.monotonic() > until:
            print(
                f"another process has {path / 'lock'}; expected to be the only one of the job.",
                file=sys.stderr,
            )
            return 1
        time.sleep(_LOOK_S)
    files = SlurmFiles(job)
    note_interruption(job, "Slurm has started it again", files.seen_at())
    files.write_number(os.environ["SLURM_JOB_ID"])
    pulse = Pulse(files.alive, [job.path])
    pulse.begin()
    try:
        if not job.read().status.is_terminal:
            attempts = _Attempts(job)
            JobRunner(job, attempts.nodes, attempts.fate).run()
    finally:
        pulse.end()
        files.alive.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
