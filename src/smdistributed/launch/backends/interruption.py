# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A job on spot instances loses its hosts, because somebody says so: to test its checkpoints.

Source: launch specification, section 7.4.
"""

from __future__ import annotations

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import Backend
from smdistributed.launch.backends.limits import Limits
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.states import Status

__all__ = ["interrupt"]


def interrupt(backend: Backend, job: JobDirectory, reason: str) -> None:
    """Has a job lose its hosts, and start again; returns at once.

    Args:
        backend: of the job.
        job: on spot instances.
        reason: in words.

    Raises:
        ConfigurationError: it has ended, or is not on spot instances; or this user may not.
    """
    record = backend.poll(job)
    if record.status is not Status.IN_PROGRESS:
        raise ConfigurationError(
            f"job {job.name!r} is {record.secondary}; expected one that goes on, to be interrupted."
        )
    if not Limits.of(record.request).is_spot:
        raise ConfigurationError(
            f"job {job.name!r} was not started with use_spot_instances; expected one that was:"
            " others are never interrupted. stop() ends it."
        )
    job.ask_to_interrupt(reason)
