# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a SageMaker training container says: hosts, and which of them comes first.

The order matters. `SM_HOSTS` is sorted, the hosts of the distribution group are not, and rank 0 is
on the first host *of the group*: a real job had `SM_HOSTS=["algo-1","algo-2"]` and group hosts
`["algo-2","algo-1"]`.

Source: dataparallel specification, section 3.2, row 7, and section 3.3, row 3.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.discovery.membership import Claim
from smdistributed._common.discovery.variables import read_text
from smdistributed._common.errors import ConfigurationError

__all__ = [
    "RESOURCE_CONFIG_PATH",
    "current_host",
    "distribution_hosts",
    "is_sagemaker",
    "read_resource_config",
    "sagemaker_claim",
]

RESOURCE_CONFIG_PATH = Path("/opt/ml/input/config/resourceconfig.json")

ResourceConfigReader = Callable[[], str | None]


def read_resource_config() -> str | None:
    """Returns the text of the container's resourceconfig.json, or `None` if there is none."""
    try:
        return RESOURCE_CONFIG_PATH.read_text(encoding="utf-8")
    except OSError:
        return None


def is_sagemaker(environ: Mapping[str, str]) -> bool:
    """True if the variables of a SageMaker training container are there."""
    return any(
        read_text(environ, name) is not None
        for name in ("SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG")
    )


def sagemaker_claim(environ: Mapping[str, str], read_file: ResourceConfigReader) -> Claim | None:
    """One process per host, numbered in the order of the distribution group."""
    hosts = distribution_hosts(environ, read_file)
    host = current_host(environ, read_file)
    if hosts is None or host is None:
        return None
    if host not in hosts:
        raise ConfigurationError(
            f"SM_CURRENT_HOST={host!r} is not one of the hosts of the job, {hosts}; expected one "
            "of them. Correct SM_CURRENT_HOST and SM_HOSTS, or set RANK and WORLD_SIZE."
        )
    return Claim(
        source="sagemaker",
        title="the SageMaker host list",
        rank_name="the index of SM_CURRENT_HOST",
        size_name="the number of SM_HOSTS",
        rank=hosts.index(host),
        world_size=len(hosts),
        local_rank=0,
        local_world_size=1,
        node_rank=hosts.index(host),
        num_nodes=len(hosts),
    )


def current_host(environ: Mapping[str, str], read_file: ResourceConfigReader) -> str | None:
    """Returns the name of this host, such as `algo-1`, or `None` outside SageMaker."""
    name = read_text(environ, "SM_CURRENT_HOST")
    if name is not None:
        return name
    config = _resource_config(environ, read_file)
    host = config.get("current_host")
    return host if isinstance(host, str) and host else None


def distribution_hosts(
    environ: Mapping[str, str], read_file: ResourceConfigReader
) -> list[str] | None:
    """Returns the hosts of the job in rank order, or `None` outside SageMaker.

    These are the hosts of the groups named by `SM_DISTRIBUTION_INSTANCE_GROUPS` (all groups if it
    names none), each in the order in which the resource configuration lists it; without groups,
    `SM_HOSTS` or the configuration's own host list as it stands.

    Raises:
        ConfigurationError: a variable does not hold the JSON it should.
    """
    config = _resource_config(environ, read_file)
    listed = _sm_hosts(environ)
    grouped = _group_hosts(environ, config)
    if grouped:
        return grouped
    if listed is not None:
        return listed
    hosts = config.get("hosts")
    if hosts is None:
        return None
    return _host_list(hosts, "hosts in resourceconfig.json", str(hosts))


def _sm_hosts(environ: Mapping[str, str]) -> list[str] | None:
    text = read_text(environ, "SM_HOSTS")
    if text is None:
        return None
    return _host_list(_parse_json(text, "SM_HOSTS"), "SM_HOSTS", text)


def _group_hosts(environ: Mapping[str, str], config: Mapping[str, Any]) -> list[str]:
    groups = config.get("instance_groups")
    if not groups:
        return []
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise _shape_error("SM_RESOURCE_CONFIG", str(groups), "a list of groups")
    text = read_text(environ, "SM_DISTRIBUTION_INSTANCE_GROUPS")
    chosen = [] if text is None else _parse_json(text, "SM_DISTRIBUTION_INSTANCE_GROUPS")
    if not isinstance(chosen, list):
        raise _shape_error("SM_DISTRIBUTION_INSTANCE_GROUPS", str(text), "a list of group names")
    hosts: list[str] = []
    for group in groups:
        if not chosen or group.get("instance_group_name") in chosen:
            hosts += _host_list(group.get("hosts"), "hosts of an instance group", str(group))
    return hosts


def _resource_config(
    environ: Mapping[str, str], read_file: ResourceConfigReader
) -> Mapping[str, Any]:
    name = "SM_RESOURCE_CONFIG"
    text = read_text(environ, name)
    if text is None:
        name, text = str(RESOURCE_CONFIG_PATH), read_file()
    if text is None:
        return {}
    config = _parse_json(text, name)
    if not isinstance(config, dict):
        raise _shape_error(name, text, "an object")
    return config


def _host_list(value: object, name: str, text: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise _shape_error(name, text, "a non-empty list of host names")
    hosts: list[str] = []
    for host in value:
        if not isinstance(host, str) or not host:
            raise _shape_error(name, text, "a non-empty list of host names")
        hosts.append(host)
    if len(set(hosts)) != len(hosts):
        raise _shape_error(name, text, "a list without duplicates")
    return hosts


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{name}={text[:200]!r} is not JSON ({error}); expected what SageMaker sets. Correct "
            f"{name}, or set RANK, WORLD_SIZE and MASTER_ADDR."
        ) from error


def _shape_error(name: str, text: str, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}={text[:200]!r} does not fit; expected {expected} in JSON. Correct {name}, or set "
        "RANK, WORLD_SIZE and MASTER_ADDR."
    )
