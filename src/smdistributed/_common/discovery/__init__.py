# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who am I? Rank, world size, host and rendezvous address, under any launcher.

`discover` decides and is pure; `export_placement` writes the result into the environment;
`complete_placement` fills in what only the other ranks know.

Source: dataparallel specification, section 3.
"""

from smdistributed._common.discovery.export import export_placement, placement_variables
from smdistributed._common.discovery.hosts import complete_placement, host_identity
from smdistributed._common.discovery.placement import Placement
from smdistributed._common.discovery.resolve import discover

__all__ = [
    "Placement",
    "complete_placement",
    "discover",
    "export_placement",
    "host_identity",
    "placement_variables",
]
