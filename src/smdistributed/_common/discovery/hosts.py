# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a host, where no launcher has said so.

All ranks exchange one identity each through the rendezvous; then each computes the same numbering
by itself. Source: dataparallel specification, section 3.2.
"""

import dataclasses
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from smdistributed._common.discovery.membership import Membership
from smdistributed._common.discovery.variables import read_text

__all__ = ["complete_membership", "host_identity"]

_BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


def host_identity(environ: Mapping[str, str]) -> str:
    """Returns a text that is the same for two processes exactly if they share a host.

    `SM_CURRENT_HOST` if set, else host name and boot id: containers of one machine differ in the
    former, and clones of one image with the same name differ in the latter.
    """
    name = read_text(environ, "SM_CURRENT_HOST")
    if name is not None:
        return f"sagemaker:{name}"
    try:
        boot_id = _BOOT_ID_PATH.read_text(encoding="ascii").strip()
    except OSError:
        boot_id = "no boot id"
    return f"host:{socket.gethostname()}:{boot_id}"


def complete_membership(membership: Membership, identities: Sequence[str]) -> Membership:
    """Fills in local rank, local size, node rank and number of nodes where they are `None`.

    Args:
        membership: what discovery found for this process.
        identities: `host_identity` of every rank, indexed by rank; `world_size` of them.

    Returns:
        The membership without `None` in these four fields. Ranks of a host are numbered by
        ascending global rank, hosts by their lowest rank. What a launcher said stays.
    """
    if len(identities) != membership.world_size:
        raise ValueError(
            f"got {len(identities)} host identities for world_size={membership.world_size}; "
            "expected one per rank"
        )
    hosts = list(dict.fromkeys(identities))
    host = identities[membership.rank]
    local_ranks = [rank for rank, identity in enumerate(identities) if identity == host]

    def keep(given: int | None, computed: int) -> int:
        return computed if given is None else given

    return dataclasses.replace(
        membership,
        local_rank=keep(membership.local_rank, local_ranks.index(membership.rank)),
        local_world_size=keep(membership.local_world_size, len(local_ranks)),
        node_rank=keep(membership.node_rank, hosts.index(host)),
        num_nodes=keep(membership.num_nodes, len(hosts)),
    )
