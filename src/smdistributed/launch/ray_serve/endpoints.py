# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a Ray cluster, as this machine sees them.

Beside its record the directory of one has `ray.json`: which application of which cluster it is.

Standard library only.
"""

from __future__ import annotations

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.api import RayApi
from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.home import Home
from smdistributed.launch.ray_serve.jobs import Kept, take_away
from smdistributed.launch.serve.endpoints import (
    EndpointDirectory,
    create_endpoint,
    delete_endpoint,
)
from smdistributed.launch.serve.record import EndpointRecord, EndpointStatus

__all__ = ["create", "delete", "looked_up"]


def create(home: Home, record: EndpointRecord) -> EndpointDirectory:
    """Has a process deploy an endpoint. Returns at once.

    Raises:
        BackendError: the cluster does not answer.
        ConfigurationError, OSError: as of `create_endpoint`; or the settings are wrong.
    """
    RayApi(RaySettings.of(home).address).require()
    return create_endpoint(home, record, "smdistributed.launch.ray_serve.deploying")


def looked_up(directory: EndpointDirectory, record: EndpointRecord) -> EndpointRecord:
    """The record of an endpoint that is in service, as the cluster sees it.

    Raises:
        BackendError: the cluster does not answer.
        ConfigurationError: `ray.json` cannot be read.
    """
    kept = Kept.of(directory.path)
    if kept is None:
        return record
    found = RayApi(kept.address).serve()["applications"].get(kept.application)
    if found is None:
        return record.failed(
            f"Ray Serve at {kept.address} has no application {kept.application} any more: somebody"
            " has deleted it, or the cluster was started anew."
        )
    if found.get("status") == "DELETING":
        return record.moved(EndpointStatus.DELETING)
    return record


def delete(directory: EndpointDirectory) -> None:
    """Ends an endpoint; returns when nothing of it is left, neither there nor here.

    Raises:
        BackendError: the cluster does not answer, or something is left there. The directory stays.
        ConfigurationError: as of `delete_endpoint`.
    """

    def there() -> None:
        kept = Kept.of(directory.path)
        if kept is None:
            return
        try:
            take_away(kept)
        except BackendError as error:
            raise BackendError(
                f"{error} The endpoint stays until then; if that cluster is gone for good, remove"
                f" {directory.path}."
            ) from None

    delete_endpoint(directory, there)
