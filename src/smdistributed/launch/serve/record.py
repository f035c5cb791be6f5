# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of an endpoint: what was asked for, where it listens, and how it stands.

Source: launch specification, sections 10.1 and 10.3.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.jobs.record import MOST_REASON

__all__ = ["MIB", "EndpointRecord", "EndpointStatus", "Framework", "ServedModel", "whole"]

MIB = 1 << 20

_FORMAT = 1


class EndpointStatus(enum.StrEnum):
    """`EndpointStatus`: how an endpoint stands."""

    CREATING = "Creating"
    IN_SERVICE = "InService"
    DELETING = "Deleting"
    FAILED = "Failed"


class Framework(enum.StrEnum):
    """Whose contract the user's functions follow."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """What an endpoint serves.

    Attributes:
        name: of the model.
        framework: whose contract it follows.
        data: URI of its archive, or of a folder.
        code: URI of the archive of the sources; empty: what the model has below `code/`.
        program: the file with the functions; empty: the default.
        environment: variables of the workers.
    """

    name: str
    framework: Framework
    data: str
    code: str = ""
    program: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EndpointRecord:
    """Of one endpoint. A record is a value: each change makes a new one.

    Attributes:
        name, arn: of the endpoint.
        model: that it serves.
        instance_count, instance_type: as they were asked for.
        created, modified: when, in UTC.
        status: how it stands.
        host, port: where it listens; 0 before it does.
        timeout_s: for an answer.
        failure_reason: why it failed; empty if it has not.
        backend: where it is served: `local`, or `ray`.
        prefix: of the path of its routes.
    """

    name: str
    arn: str
    model: ServedModel
    instance_count: int
    instance_type: str
    created: dt.datetime
    modified: dt.datetime
    status: EndpointStatus = EndpointStatus.CREATING
    host: str = "127.0.0.1"
    port: int = 0
    timeout_s: float = 60.0
    failure_reason: str = ""
    backend: str = "local"
    prefix: str = ""

    @property
    def is_here(self) -> bool:
        """Whether processes of this machine serve it."""
        return self.backend == "local"

    @property
    def address(self) -> str:
        """The URL of its routes; empty before it listens."""
        return f"http://{self.host}:{self.port}{self.prefix}" if self.port else ""

    def moved(self, status: EndpointStatus, **changes: Any) -> EndpointRecord:
        """The record when the endpoint stands otherwise, from now on."""
        now = dt.datetime.now(dt.UTC)
        return dataclasses.replace(self, status=status, modified=now, **changes)

    def failed(self, reason: str) -> EndpointRecord:
        """The record when it has failed; a reason that is too long is cut."""
        return self.moved(EndpointStatus.FAILED, failure_reason=reason[:MOST_REASON])

    def describe(self) -> dict[str, Any]:
        """The response of `DescribeEndpoint`."""
        response: dict[str, Any] = {
            "EndpointName": self.name,
            "EndpointArn": self.arn,
            "EndpointConfigName": self.name,
            "ProductionVariants": [
                {
                    "VariantName": "AllTraffic",
                    "CurrentInstanceCount": self.instance_count,
                    "DesiredInstanceCount": self.instance_count,
                    "CurrentWeight": 1.0,
                    "DesiredWeight": 1.0,
                }
            ],
            "EndpointStatus": str(self.status),
            "CreationTime": self.created,
            "LastModifiedTime": self.modified,
        }
        if self.failure_reason:
            response["FailureReason"] = self.failure_reason
        return response

    def to_json(self) -> dict[str, Any]:
        """What stands in `endpoint.json`."""
        document = dataclasses.asdict(self)
        document["created"] = self.created.isoformat()
        document["modified"] = self.modified.isoformat()
        return {"format": _FORMAT, **document}

    @classmethod
    def of_json(cls, document: Any) -> EndpointRecord:
        """Reads what stands in `endpoint.json`.

        Raises:
            ConfigurationError: it was written by a later version.
            LookupError, TypeError, ValueError: it is no such file.
        """
        fields = dict(document)
        if fields.pop("format") > _FORMAT:
            raise ConfigurationError("a later version has written it; expected this one's format.")
        model = dict(fields.pop("model"))
        model["framework"] = Framework(model["framework"])
        fields["status"] = EndpointStatus(fields["status"])
        for key in ("created", "modified"):
            fields[key] = dt.datetime.fromisoformat(fields[key])
        return cls(model=ServedModel(**model), **fields)


def whole(environ: Mapping[str, str], name: str, default: int) -> int:
    """A setting of the server.

    Raises:
        ConfigurationError: it is no whole number greater than 0.
    """
    text = environ.get(name) or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise ConfigurationError(f"{name} is {text!r}; expected a whole number greater than 0.")
    return int(text)
