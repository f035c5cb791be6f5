# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A decision, as its users read it.

Source: modelparallel specification, section 3.8.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Assignment", "Share"]


class Share(NamedTuple):
    """What a part is of the whole model, 0 to 1; of a module without its children."""

    memory: float
    time: float


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A decision.

    Attributes:
        partition_of: by name of what was assigned, from 0: modules of a tree, groups of a graph.
        loads: by partition, as shares of the model's cost; messages included where they cost.
        crossing_bytes: that pass between partitions in one forward pass.
        shares: by name.
        reasons: by name, why it is where it is, in words.
    """

    partition_of: Mapping[str, int]
    loads: tuple[float, ...]
    crossing_bytes: float
    shares: Mapping[str, Share]
    reasons: Mapping[str, str]

    @property
    def largest(self) -> float:
        """The load that sets the pace."""
        return max(self.loads)
