# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What every backend does: five verbs, and no scheduling.

`tests/conformance/backends` has a suite that each backend passes.

Source: launch specification, section 11.
"""

from __future__ import annotations

from typing import Protocol

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.logs import JobLog
from smdistributed.launch.jobs.record import JobRecord

__all__ = ["Backend", "BackendError"]


class BackendError(SmdistributedError):
    """A scheduler, or machines, cannot be reached, or refuse a job; says what to check by hand."""


class Backend(Protocol):
    """Brings the hosts of jobs up, somewhere. What it knows of a job is in the job's directory."""

    @property
    def name(self) -> str:
        """Of the kind, such as `local`."""

    def submit(self, job: JobDirectory) -> None:
        """Starts a job that was just made; returns at once.

        Args:
            job: this process has its lock, and hands it over.

        Raises:
            OSError: it could not be started; the job has failed then.
            BackendError: likewise.
        """

    def poll(self, job: JobDirectory) -> JobRecord:
        """The record of a job as it is now, which is ended if nobody else is left to do it.

        Raises:
            ConfigurationError: it cannot be read; says why.
        """

    def stop(self, job: JobDirectory, reason: str) -> None:
        """Has a job stop; returns at once. What has ended stays as it is.

        Raises:
            ConfigurationError: this user may not.
        """

    def logs(self, job: JobDirectory, host: str | None = None, rank: int | None = None) -> JobLog:
        """What its hosts have logged so far, and will.

        Args:
            host, rank: of these alone; None: of all.
        """

    def clean(self, job: JobDirectory) -> None:
        """Takes away what is left of a job that has ended; its results stay.

        Raises:
            ConfigurationError: it has not ended, or this user may not.
        """
