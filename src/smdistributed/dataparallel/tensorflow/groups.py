# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Groups: ranks of the job that communicate among themselves.

The group of all ranks is there from `init()` on, and is what functions use that are given none.
Others are made by `job.new_group`. Each has an engine of its own, so what one group does neither
waits for another one nor is mixed up with it.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import dataclasses

from smdistributed.collectives import Communicator
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["WORLD", "Group"]

# The number of the group of all ranks.
WORLD = 0


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Group:
    """Ranks of the job that communicate among themselves; see `new_group`.

    Attributes:
        ranks: its members, by their ranks in the job, in ascending order. Where a rank in the
            group is asked for, such as `root_rank`, it is an index of these.
        number: what operations know it by in this process; never used for another group. (That of
            all ranks is 0.)
    """

    ranks: tuple[int, ...]
    number: int
    _communicator: Communicator | None  # None: this process is no member

    def size(self) -> int:
        """Number of its ranks."""
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this process is one of them."""
        return self._communicator is not None

    def rank(self) -> int:
        """Rank of this process in the group, 0 to `size() - 1`.

        Raises:
            SMDDPConfigInvalid: (a ValueError) it is no member.
        """
        return self.communicator("Group.rank()").rank

    def communicator(self, caller: str) -> Communicator:
        """Its engine.

        Args:
            caller: for messages.

        Raises:
            SMDDPConfigInvalid: (a ValueError) this process is no member.
        """
        if self._communicator is None:
            raise SMDDPConfigInvalid(
                f"{caller}: this process is not in {self}; expected one of its members. Call it"
                " there alone: `if group.included():`."
            )
        return self._communicator

    def __repr__(self) -> str:
        most = 8
        shown = ", ".join(map(str, self.ranks[:most])) + (", ..." if len(self.ranks) > most else "")
        return f"the group of {'rank' if len(self.ranks) == 1 else 'ranks'} {shown}"
