# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a job's directory about its job of Slurm.

slurm.json    the number of the job
slurm.alive   touched by the job's process about once a second; not there if none runs
slurm.sh      what Slurm runs: always the same text
"""

from __future__ import annotations

import datetime as dt
import json

from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.jobs.states import Secondary

__all__ = ["SlurmFiles", "note_interruption"]

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

    def seen_at(self) -> dt.datetime | None:
        """When the job's process gave its last sign of life; None: never, or it has ended well."""
        try:
            return dt.datetime.fromtimestamp(self.alive.stat().st_mtime, dt.UTC)
        except OSError:
            return None

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


def note_interruption(job: JobDirectory, why: str, when: dt.datetime | None) -> JobRecord:
    """The record, in which a job is interrupted if it had begun. The caller has the job's lock.

    Args:
        job: whose process is gone, and will be started again.
        why: in words.
        when: its process was seen; None: nobody knows.
    """
    record = job.read()
    if record.secondary in (Secondary.DOWNLOADING, Secondary.TRAINING):
        now = dt.datetime.now(dt.UTC)
        record = record.moved(Secondary.INTERRUPTED, min(when or now, now), why)
        job.write(record)
        job.note("state", now, state=str(Secondary.INTERRUPTED))
    return record
