# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints, wherever they are served: on this machine, or on a Ray cluster.

Standard library only.
"""

from __future__ import annotations

from smdistributed.launch.home import Home
from smdistributed.launch.ray_serve import endpoints as on_ray
from smdistributed.launch.serve.endpoints import EndpointDirectory, create_endpoint
from smdistributed.launch.serve.record import EndpointRecord, EndpointStatus

__all__ = ["create", "delete", "poll"]


def create(home: Home, record: EndpointRecord) -> EndpointDirectory:
    """Starts an endpoint where its record says; it goes on without this process. Returns at once.

    Raises:
        BackendError: the cluster does not answer.
        ConfigurationError, UnsupportedError, OSError: as of `create_endpoint`.
    """
    return create_endpoint(home, record) if record.is_here else on_ray.create(home, record)


def poll(directory: EndpointDirectory) -> EndpointRecord:
    """The record as it is now. Of one that a cluster serves, the cluster is asked.

    Raises:
        BackendError: the cluster does not answer.
        ConfigurationError: the record cannot be read.
    """
    record = directory.poll()
    if record.is_here or record.status is not EndpointStatus.IN_SERVICE:
        return record
    return on_ray.looked_up(directory, record)


def delete(directory: EndpointDirectory) -> None:
    """Ends an endpoint, wherever it is; returns when nothing of it is left.

    Raises:
        BackendError: the cluster does not answer, or something is left there.
        ConfigurationError: as of `delete_endpoint`.
    """
    on_ray.delete(directory)  # not as the record says, which may be one that cannot be read
