# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which layers of an `nn.Sequential` are checkpointed as one: arithmetic, without torch.

Source: modelparallel specification, section 6.4 (`strategy`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["DIVIDED", "most_layers", "rows"]

# Of a layer whose parts are on several partitions: it is a row of its own.
DIVIDED = -1


def most_layers(strategy: str) -> int | None:
    """How many layers a row may have; None: as many as follow each other on one partition.

    Raises:
        ValueError: there is no such strategy.
    """
    if strategy == "each":
        return 1
    if strategy == "contiguous":
        return None
    group = re.fullmatch(r"group_([1-9][0-9]*)", str(strategy))
    if group is None:
        raise ValueError(
            f'strategy is {strategy!r}; expected "each" (every layer by itself), "contiguous"'
            ' (those that follow each other on one partition), or "group_2", "group_3", ... (at'
            " most so many of these)."
        )
    return int(group[1])


def rows(places: Sequence[int | None], most: int | None) -> list[tuple[range, int | None]]:
    """Cuts layers into rows, each of layers of one partition.

    Args:
        places: of each layer its partition; None for one that can run anywhere, `DIVIDED`.
        most: layers in a row; None: no bound.

    Returns: the indices of each row, and its partition; None if all of it can run anywhere.
    """
    found: list[tuple[range, int | None]] = []
    begin, here = 0, None
    for index, place in enumerate(places):
        fits = place != DIVIDED != here and (place is None or here is None or place == here)
        if index > begin and (not fits or index - begin == most):
            found.append((range(begin, index), here))
            begin, here = index, None
        here = here if place is None else place
    if places:
        found.append((range(begin, len(places)), here))
    return found
