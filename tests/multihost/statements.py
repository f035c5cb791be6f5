# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All statements of a list of the conformance suite, checked by one job of ranks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.collectives import group_checks, reduction_checks
from tests.conformance.collectives.ranks import TIMEOUT_S

LISTS: Mapping[str, Mapping[str, Callable[[Any], None]]] = {
    "groups": group_checks.CHECKS,
    "reductions": reduction_checks.CHECKS,
}


def check_all(rank: int, world_size: int, name: str) -> dict[str, str]:
    """What went wrong, by statement of the list `name`: "" for nothing.

    Each has a group of its own, so that one that fails does not spoil the next.
    """
    from smdistributed import collectives

    found = {}
    with collectives.init(timeout_s=TIMEOUT_S) as world:
        for statement, check in LISTS[name].items():
            found[statement] = ""
            comm = world.split(0)
            assert comm is not None
            with comm:
                try:
                    check(comm)
                    comm.barrier()
                except Exception:
                    found[statement] = traceback.format_exc()
                    comm.abort(f"{statement} failed on rank {rank}")
            world.barrier()
    return found
