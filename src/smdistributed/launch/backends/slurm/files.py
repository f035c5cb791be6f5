# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a job's directory about its job of Slurm.

slurm.json    the number of the job
slurm.alive   touched by the job's process about once a second; not there if none runs
slurm.sh      what Slurm runs: always the same text
"""

from __future__ import annotations

import json

from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole

__all__ = ["SlurmFiles"]

# Arguments: a Python, and the job's directory.
_SCRIPT = b'#!/bin/sh\nexec "$1" -P -m smdistributed.launch.backends.slurm.runner "$2"\n'


class SlurmFiles:
    """Of one job.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self.alive = job.path / "slurm.alive"
        self.script = job.path / "slurm.sh"
        self.log = job.path / "job.log"
        self._number = job.path / "slurm.json"

    def write_script(self) -> None:
        """Makes the script."""
        write_whole(self.script, _SCRIPT)

    def write_number(self, number: str) -> None:
        """Says which job of Slurm it is."""
        write_whole(self._number, json.dumps({"job": number}).encode())

    def number(self) -> str | None:
        """The job of Slurm; None if it was never submitted."""
        try:
            return str(json.loads(self._number.read_bytes())["job"])
        except FileNotFoundError:
            return None
