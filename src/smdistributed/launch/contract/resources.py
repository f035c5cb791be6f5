# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job, as `resourceconfig.json` tells each of them.

Source: launch specification, section 7.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from smdistributed._common.errors import ConfigurationError

__all__ = ["HOMOGENEOUS", "InstanceGroup", "Resources", "host_names"]

HOMOGENEOUS = "homogeneousCluster"
"""The name of the group, where all hosts are of one kind."""


class InstanceGroup(NamedTuple):
    """Hosts of one kind.

    Attributes:
        name: of the group.
        instance_type: such as `ml.p4d.24xlarge`, or `local`.
        hosts: in the order of their ranks, which is not that of their names: the first one is the
            master.
    """

    name: str
    instance_type: str
    hosts: tuple[str, ...]


class Resources(NamedTuple):
    """What one host knows of all.

    Attributes:
        current_host: this one, such as `algo-1`.
        groups: of all hosts; each host is in one of them.
        network_interface: by which hosts reach one another.
        topology: where hosts stand, if the engine says so.
    """

    current_host: str
    groups: tuple[InstanceGroup, ...]
    network_interface: str = "eth0"
    topology: Mapping[str, Any] | None = None

    @property
    def hosts(self) -> list[str]:
        """All of them, sorted as text: `algo-10` comes before `algo-2`."""
        return sorted(host for group in self.groups for host in group.hosts)

    @property
    def current_group(self) -> InstanceGroup:
        """That of this host."""
        return next(group for group in self.groups if self.current_host in group.hosts)

    def group(self, name: str) -> InstanceGroup:
        """The group of that name.

        Raises:
            ConfigurationError: there is none.
        """
        for group in self.groups:
            if group.name == name:
                return group
        names = ", ".join(group.name for group in self.groups)
        raise ConfigurationError(
            f"the job has no instance group {name!r}; expected one of: {names}."
        )

    def to_json(self) -> dict[str, Any]:
        """What stands in `resourceconfig.json`."""
        document: dict[str, Any] = {
            "current_host": self.current_host,
            "hosts": self.hosts,
            "network_interface_name": self.network_interface,
            "current_instance_type": self.current_group.instance_type,
            "current_group_name": self.current_group.name,
            "instance_groups": [
                {
                    "instance_group_name": group.name,
                    "instance_type": group.instance_type,
                    "hosts": list(group.hosts),
                }
                for group in self.groups
            ],
        }
        if self.topology is not None:
            document["topology"] = dict(self.topology)
        return document

    @classmethod
    def of_json(cls, text: str) -> Resources:
        """Reads `resourceconfig.json`, also one that names hosts alone, without groups.

        Raises:
            ConfigurationError: it is no such file; says what is missing.
        """
        try:
            document = json.loads(text)
            host = _text(document["current_host"])
            groups = tuple(
                InstanceGroup(
                    _text(each["instance_group_name"]),
                    _text(each["instance_type"]),
                    tuple(map(_text, each["hosts"])),
                )
                for each in document.get("instance_groups") or [_only_group(document)]
            )
            interface = _text(document.get("network_interface_name") or "eth0")
            topology = document.get("topology")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"resourceconfig.json cannot be read ({type(error).__name__}: {error}); expected a"
                " JSON object with current_host, hosts and instance_groups. Begins with:"
                f" {text[:200]!r}"
            ) from None
        if not any(host in group.hosts for group in groups):
            raise ConfigurationError(
                f"resourceconfig.json says that this host is {host!r}, and has it in none of its"
                " instance_groups; expected it in one."
            )
        return cls(host, groups, interface, topology)


def _only_group(document: Mapping[str, Any]) -> dict[str, Any]:
    name = document.get("current_group_name") or document.get("current_instance_group")
    return {
        "instance_group_name": name or HOMOGENEOUS,
        "instance_type": document.get("current_instance_type") or "local",
        "hosts": document["hosts"],
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def host_names(count: int, first: int = 1) -> tuple[str, ...]:
    """`algo-1`, `algo-2` and so on: the names that hosts have in a job.

    Args:
        count: of hosts.
        first: the number of the first one, where other groups come before.
    """
    return tuple(f"algo-{number}" for number in range(first, first + count))
