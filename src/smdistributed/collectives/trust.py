# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What users are told about whom their ranks trust."""

from smdistributed._common.log import get_logger
from smdistributed.collectives import _native

__all__ = ["tell_of_weak_trust"]

_has_told = False


def tell_of_weak_trust(communicator: _native.Communicator, token: bytes | None) -> None:
    """Warn, once per process and on rank 0, that a group works over TCP without a job token.

    Its connections then prove to know 128 random bits that went through the store, so whoever can
    read the store can take part.

    Source: our choice; see docs/security.md.
    """
    global _has_told
    if token is not None or communicator.rank != 0 or _has_told:
        return
    if all(entry["transport"] != "tcp" for entry in communicator.topology()):
        return
    _has_told = True
    get_logger().warning(
        "ranks talk over TCP and there is no job token: whoever can read the store at MASTER_ADDR "
        "can take part. Set SMDDP_TOKEN to the same random text on all ranks (such as `openssl "
        "rand -hex 32` prints), or start with smddprun, which does."
    )
