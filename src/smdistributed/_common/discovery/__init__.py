# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I? Rank, world size, host and rendezvous address, under any launcher.

`discover` decides and is pure; `export_membership` writes the result into the environment;
`complete_membership` fills in what only the other ranks know.

Source: dataparallel specification, section 3.
"""

from smdistributed._common.discovery.export import export_membership, membership_variables
from smdistributed._common.discovery.hosts import complete_membership, host_identity
from smdistributed._common.discovery.membership import Membership
from smdistributed._common.discovery.resolve import discover

__all__ = [
    "Membership",
    "complete_membership",
    "discover",
    "export_membership",
    "host_identity",
    "membership_variables",
]
