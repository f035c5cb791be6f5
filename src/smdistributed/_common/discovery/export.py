# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Putting what discovery found where scripts and third-party trainers look for it.

This is what makes `os.environ["LOCAL_RANK"]` work right after the import under mpirun or srun.
Source: dataparallel specification, sections 3.1 and 3.2.
"""

import os
from collections.abc import MutableMapping

from smdistributed._common.discovery.membership import Membership
from smdistributed._common.discovery.variables import read_text
from smdistributed._common.log import get_logger

__all__ = ["export_membership", "membership_variables"]

# The server port of the original container contract; some scripts read it.
_SERVER_PORT = 7592

# Third-party trainers detect data parallel only through this.
_FRAMEWORK_PARAMS = '{"sagemaker_distributed_dataparallel_enabled":true}'

# What is derived from RANK and WORLD_SIZE, and is therefore wrong when these were.
_REPLACED_WHEN_OVERRULED = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "SMDATAPARALLEL_LOCAL_RANK",
    }
)
_ONE_HOST = "SMDATAPARALLEL_USE_SINGLENODE"
_SEVERAL_HOSTS = "SMDATAPARALLEL_USE_HOMOGENEOUS"


def membership_variables(membership: Membership, instance_type: str = "local") -> dict[str, str]:
    """Returns the variables of section 3.1 for a membership; what is unknown is left out."""
    numbers = {
        "RANK": membership.rank,
        "WORLD_SIZE": membership.world_size,
        "LOCAL_RANK": membership.local_rank,
        "LOCAL_WORLD_SIZE": membership.local_world_size,
        "NODE_RANK": membership.node_rank,
        "GROUP_RANK": membership.node_rank,
        "MASTER_PORT": membership.master_port,
        "SMDATAPARALLEL_LOCAL_RANK": membership.local_rank,
        "SMDATAPARALLEL_SERVER_PORT": _SERVER_PORT,
    }
    variables = {name: str(value) for name, value in numbers.items() if value is not None}
    if membership.master_addr is not None:
        variables["MASTER_ADDR"] = membership.master_addr
        variables["SMDATAPARALLEL_SERVER_ADDR"] = membership.master_addr
    if membership.local_world_size is not None:
        one_host = membership.local_world_size == membership.world_size
        variables[_ONE_HOST if one_host else _SEVERAL_HOSTS] = "1"
    variables["SAGEMAKER_INSTANCE_TYPE"] = instance_type
    variables["SM_FRAMEWORK_PARAMS"] = _FRAMEWORK_PARAMS
    return variables


def export_membership(
    membership: Membership, environ: MutableMapping[str, str] | None = None
) -> tuple[str, ...]:
    """Sets every missing variable of section 3.1 and logs the membership's warnings.

    What is set stays, except when the torch variables counted hosts and were overruled: then the
    numbers are replaced, with a warning. A process without a job exports nothing. The warnings are
    shown by rank 0 and are debug messages elsewhere, as all ranks find the same.

    Args:
        membership: what `discover` found.
        environ: the environment to change; default: that of this process.

    Returns:
        The names of the variables that were set, in alphabetical order.
    """
    if environ is None:
        environ = os.environ
    logger = get_logger()
    for warning in membership.warnings:
        (logger.warning if membership.rank == 0 else logger.debug)(warning)
    if membership.source == "none":
        return ()
    instance_type = read_text(environ, "SM_CURRENT_INSTANCE_TYPE") or "local"
    changed: list[str] = []
    for name, value in sorted(membership_variables(membership, instance_type).items()):
        old = read_text(environ, name)
        if old == value:
            continue
        if name in (_ONE_HOST, _SEVERAL_HOSTS) and (
            read_text(environ, _ONE_HOST) or read_text(environ, _SEVERAL_HOSTS)
        ):
            continue
        if old is not None:
            if not (membership.overrules_torch and name in _REPLACED_WHEN_OVERRULED):
                continue
            logger.debug("%s=%s is replaced by %s", name, old, value)
        environ[name] = value
        changed.append(name)
    return tuple(changed)
