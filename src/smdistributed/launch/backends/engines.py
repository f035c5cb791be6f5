# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which backend a job is of, and what brings its hosts up. One is imported when it is wanted."""

from __future__ import annotations

from collections.abc import Callable

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.hosts import Hosts
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["hosts_for"]


def hosts_for(job: JobDirectory) -> Callable[[], Hosts]:
    """What makes the hosts of each attempt of a job.

    Raises:
        ConfigurationError: its record cannot be read, or names no backend that is known.
    """
    name = job.read().local.get("Backend", "local")
    if name == "local":
        from smdistributed.launch.backends.this_machine import ThisMachine

        return lambda: ThisMachine(job)
    raise ConfigurationError(
        f"job {job.name!r} is of the backend {name!r}; expected one that this version has: 'local'."
    )
