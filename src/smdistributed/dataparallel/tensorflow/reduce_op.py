# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The documented names of reduce operations.

Source: dataparallel specification, sections 7.3, 7.4 and 7.6.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from smdistributed import collectives
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["GRADIENT_OPS", "ReduceOp", "resolve_op"]


class ReduceOp:
    """How a reduction combines what the ranks bring.

    `AVERAGE` is the sum divided by the number of ranks. Of 16-bit types it is computed without
    leaving their range on the way, of integers in float64.
    """

    AVERAGE = collectives.ReduceOp.AVG
    SUM = collectives.ReduceOp.SUM
    MIN = collectives.ReduceOp.MIN
    MAX = collectives.ReduceOp.MAX


_NAMES = {
    ReduceOp.AVERAGE: "AVERAGE",
    ReduceOp.SUM: "SUM",
    ReduceOp.MIN: "MIN",
    ReduceOp.MAX: "MAX",
}

# The smallest or largest of the ranks' gradients is the gradient of nothing.
GRADIENT_OPS = (ReduceOp.AVERAGE, ReduceOp.SUM)


def resolve_op(
    op: Any, caller: str, allowed: Collection[collectives.ReduceOp] = tuple(_NAMES)
) -> collectives.ReduceOp:
    """The engine's operation for an `op` argument; None is AVERAGE.

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is none of the allowed ones.
    """
    if op is None:
        return ReduceOp.AVERAGE
    if isinstance(op, collectives.ReduceOp) and op in allowed:
        return op
    given = (
        f"ReduceOp.{_NAMES[op]}" if isinstance(op, collectives.ReduceOp) and op in _NAMES else op
    )
    names = ", ".join(f"ReduceOp.{_NAMES[each]}" for each in allowed)
    raise SMDDPConfigInvalid(
        f"{caller} got op={given!s}; expected one of {names}, or None for ReduceOp.AVERAGE. Pass"
        " one of these."
    )
