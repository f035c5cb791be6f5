# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a follower asks of a cluster, in which a job's process runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["Cluster", "patience_s"]

_GIVE_UP_S = 300.0
_STOPPED_S = 15.0


def patience_s(job: JobDirectory) -> float:
    """For how long a cluster that does not answer is asked again, in seconds.

    Who stops a job waits for its end, and need not be kept for a cluster that is gone.
    """
    return _GIVE_UP_S if job.stop_reason() is None else _STOPPED_S


class Cluster(Protocol):
    """Where the job's process runs."""

    def start(self) -> None:
        """Has it start, unless it was started before and not cleared since.

        Raises:
            SmdistributedError: it cannot be; says why.
        """

    def text(self) -> Iterator[str | None]:
        """Its log from the start, in pieces as they come; an empty one at least each second.

        None: from here on it comes from the start again, or from the oldest that is left of it.

        It ends when the process has, and all of its log was read.

        Raises:
            SmdistributedError: the cluster cannot be asked any more.
        """

    def stop(self) -> None:
        """Has the process stop the job, by SIGTERM. Once is as good as twice.

        Raises:
            BackendError: the cluster was not told.
        """

    def interrupt(self, reason: str) -> None:
        """Has it end the attempt, as `interruption` says.

        Raises:
            BackendError: the cluster was not told.
        """

    def how_it_ended(self) -> str:
        """In words, for the case that the job has no end."""

    def why_lost(self, *, has_stopped: bool) -> str:
        """Why the process has ended that would have gone on; another one may do so in its place.

        Args:
            has_stopped: it has told that it heard a signal, and has stopped the job.

        Returns: in words; empty: it failed by itself, or somebody there has ended the job, or it
            may run still, or nobody can tell.
        """

    def clear(self) -> None:
        """Takes away what is left of a process that is lost. Nothing of it runs when this returns.

        It returns at once if the job is to stop.

        Raises:
            BackendError: it is there still.
        """

    def close(self) -> None:
        """Takes away what is left there, once the job has ended."""
