# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which process of a job in its cluster is followed: the first, or one that goes on after it.

    submission.json    in the job's directory, once there is more than the first

A follower that is killed at any point leaves to the next one what it has begun.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from smdistributed.launch.agent.ending import host_directories, now
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import end_line, write_whole
from smdistributed.launch.jobs.states import Secondary

__all__ = ["Submission", "end_lines", "note_loss"]

# Each host says what it uses once a minute.
_SIGNS_S = 120.0


@dataclasses.dataclass(frozen=True)
class Submission:
    """One process of the job in the cluster.

    Attributes:
        number: from 1.
        lost: why it is gone, as the job's record has it; empty: it is not. The next one begins
            where that is told of.
        bases: bytes of files that grow, by their paths in the job's directory, which the processes
            before it have told. It counts from 0.
    """

    number: int = 1
    lost: str = ""
    bases: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, job: Path) -> Submission:
        """That of a job's directory."""
        try:
            return cls(**json.loads(_file(job).read_bytes()))
        except FileNotFoundError:
            return cls()

    def write(self, job: Path) -> None:
        """Makes it that of a job's directory.

        Raises:
            OSError: it cannot be written; the former one is unchanged.
        """
        write_whole(_file(job), json.dumps(dataclasses.asdict(self)).encode())


def _file(job: Path) -> Path:
    return job / "submission.json"


def note_loss(job: JobDirectory, why: str) -> None:
    """Says in a job's record that its process is lost, and its hosts with it; once.

    The hosts may have been without it for hours, if nobody followed: they did not train then.
    """
    record = job.read()
    if any(each.message == why for each in record.transitions):
        return
    if record.secondary is Secondary.STOPPING:  # it heard a signal; nobody has asked for a stop
        when = record.transitions[-1].start
        record = dataclasses.replace(record, transitions=record.transitions[:-1])
    else:
        signs = [each for each in _signs(job) if each <= now()]
        last = max([record.transitions[-1].start, *signs])
        when = now() if (now() - last).total_seconds() < _SIGNS_S else last
    if record.secondary is Secondary.INTERRUPTED:
        record = record.moved(Secondary.STARTING, when)
    job.write(record.moved(Secondary.INTERRUPTED, when, why))
    job.note("state", now(), state=str(Secondary.INTERRUPTED))


def _signs(job: JobDirectory) -> Iterator[dt.datetime]:
    """When each host has last said what it uses."""
    for host in host_directories(job):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
            lines = host.system_metrics.read_bytes().split(b"\n")
            point = json.loads(lines[-2])  # the last one that is whole
            yield dt.datetime.fromtimestamp(float(point["time"]), dt.UTC)


def end_lines(job: Path, files: Iterable[Path]) -> dict[str, int]:
    """Ends the last lines of files that processes before have told, where others go on.

    Returns: bytes of each, by its path in the job's directory.

    Raises:
        OSError: they cannot be written.
    """
    found = {}
    for path in files:
        if path.parent.parent.name != "tensorboard":  # those have no lines
            end_line(path)
        found[str(path.relative_to(job))] = path.stat().st_size
    return found
