# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a job on Slurm: `python -m ...slurm.runner FOLDER`, on its first node.

Slurm may end it and start it again, on other nodes: it goes on with what is in the job's directory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from smdistributed.launch.backends.engines import hosts_for
from smdistributed.launch.backends.runner import JobRunner
from smdistributed.launch.backends.slurm.files import SlurmFiles
from smdistributed.launch.backends.slurm.node import Pulse
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["main"]

# Who has submitted the job writes its number down before this.
_LOCK_S = 30.0
_LOOK_S = 0.05


def main() -> int:
    """Runs the job of the directory that is the argument."""
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
    files.write_number(os.environ["SLURM_JOB_ID"])
    pulse = Pulse(files.alive, [job.path])
    pulse.begin()
    try:
        if not job.read().status.is_terminal:
            JobRunner(job, hosts_for(job)).run()
    finally:
        pulse.end()
        files.alive.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
