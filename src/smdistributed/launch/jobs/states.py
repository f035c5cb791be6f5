# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a job, and which may follow which.

Source: launch specification, section 7.4.
"""

from __future__ import annotations

import enum

from smdistributed._common.errors import InternalError

__all__ = ["LEGAL", "Secondary", "Status", "require_legal", "status_of"]


class Status(enum.StrEnum):
    """`TrainingJobStatus`: how a job stands."""

    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self in (Status.COMPLETED, Status.FAILED, Status.STOPPED)


class Secondary(enum.StrEnum):
    """`SecondaryStatus`: what a job does."""

    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    UPLOADING = "Uploading"
    INTERRUPTED = "Interrupted"  # its hosts were taken away; it starts again
    STOPPING = "Stopping"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"


_STATUS = {
    Secondary.STOPPING: Status.STOPPING,
    Secondary.COMPLETED: Status.COMPLETED,
    Secondary.FAILED: Status.FAILED,
    Secondary.STOPPED: Status.STOPPED,
    Secondary.MAX_RUNTIME_EXCEEDED: Status.STOPPED,
    Secondary.MAX_WAIT_TIME_EXCEEDED: Status.STOPPED,
}


def status_of(secondary: Secondary) -> Status:
    """How a job stands that does this."""
    return _STATUS.get(secondary, Status.IN_PROGRESS)


# What may happen to a job at any time before its end.
_ALWAYS = frozenset({Secondary.FAILED, Secondary.STOPPING})

LEGAL: dict[Secondary, frozenset[Secondary]] = {
    Secondary.STARTING: _ALWAYS | {Secondary.DOWNLOADING, Secondary.INTERRUPTED},
    Secondary.DOWNLOADING: _ALWAYS | {Secondary.TRAINING, Secondary.INTERRUPTED},
    Secondary.TRAINING: _ALWAYS | {Secondary.UPLOADING, Secondary.INTERRUPTED},
    Secondary.UPLOADING: _ALWAYS | {Secondary.COMPLETED},
    Secondary.INTERRUPTED: _ALWAYS | {Secondary.STARTING},
    Secondary.STOPPING: frozenset(
        {
            Secondary.FAILED,
            Secondary.STOPPED,
            Secondary.MAX_RUNTIME_EXCEEDED,
            Secondary.MAX_WAIT_TIME_EXCEEDED,
        }
    ),
    Secondary.COMPLETED: frozenset(),
    Secondary.FAILED: frozenset(),
    Secondary.STOPPED: frozenset(),
    Secondary.MAX_RUNTIME_EXCEEDED: frozenset(),
    Secondary.MAX_WAIT_TIME_EXCEEDED: frozenset(),
}
"""By what a job does, what may follow."""


def require_legal(now: Secondary, following: Secondary) -> None:
    """Raises what a defect of ours is, if `following` cannot come after `now`."""
    if following not in LEGAL[now]:
        allowed = ", ".join(sorted(LEGAL[now])) or "nothing"
        raise InternalError(
            f"a job that is {now} was to become {following}; expected one of: {allowed}."
        )
