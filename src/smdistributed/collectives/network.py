# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What users are told about the way to other hosts."""

from smdistributed._common.log import get_logger
from smdistributed.collectives import _native

__all__ = ["tell_of_interfaces"]

_told: set[str] = set()


def tell_of_interfaces(communicator: _native.Communicator) -> None:
    """Log, once per process, which network interfaces lead to other hosts, and how quick they are.

    At level INFO. Source: our choice; see docs/environment.md, `SMDDP_INTERFACE`.
    """
    interfaces = communicator.interfaces
    if not interfaces or interfaces in _told:
        return
    _told.add(interfaces)
    latency_s, bytes_per_s = communicator.link
    get_logger().info(
        "reaches other hosts over %s, in about %.0f us and with %.2g Gbit/s; SMDDP_INTERFACE "
        "chooses other interfaces",
        interfaces,
        1e6 * latency_s,
        8e-9 * bytes_per_s,
    )
