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
from collections.abc import Sequence
from typing import Any, NoReturn

from smdistributed.collectives import Communicator
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid

__all__ = ["WORLD", "Group", "shown_ranks"]

# The number of the group of all ranks.
WORLD = 0

_RANKS_IN_MESSAGES = 8


@dataclasses.dataclass(eq=False, repr=False)
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
    # None: this process is no member, or has left.
    _communicator: Communicator | None

    def __post_init__(self) -> None:
        self._rank = None if self._communicator is None else self._communicator.rank

    def size(self) -> int:
        """Number of its ranks."""
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this process is one of them."""
        return self._rank is not None

    def rank(self) -> int:
        """Rank of this process in the group, 0 to `size() - 1`.

        Raises:
            SMDDPConfigInvalid: (a ValueError) it is no member.
        """
        if self._rank is None:
            raise self._not_a_member("Group.rank()")
        return self._rank

    def leave(self) -> None:
        """Closes its engine, and lets go of it: a script may keep the group, but not its memory."""
        engine, self._communicator = self._communicator, None
        if engine is not None:
            engine.close()

    def communicator(self, caller: str) -> Communicator:
        """Its engine.

        Args:
            caller: for messages.

        Raises:
            SMDDPConfigInvalid: (a ValueError) this process is no member, or has left.
        """
        if self._rank is None:
            raise self._not_a_member(caller)
        if self._communicator is None:
            raise self.has_been_left(caller)
        return self._communicator

    def has_been_left(self, caller: str) -> SMDDPConfigInvalid:
        """The error of a function that was given it all the same."""
        return SMDDPConfigInvalid(
            f"{caller} got {self}, which has been left; expected one that is open. Make another"
            " one: new_group(ranks)."
        )

    def _not_a_member(self, caller: str) -> SMDDPConfigInvalid:
        return SMDDPConfigInvalid(
            f"{caller}: this process is not in {self}; expected one of its members. Call it there"
            " alone: `if group.included():`."
        )

    def __copy__(self) -> Group:
        """Itself: what holds a group, such as a callback, may be copied."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """As `__copy__`."""
        return self

    def __reduce__(self) -> NoReturn:
        """It has no meaning in another process, or in a file."""
        raise TypeError(
            f"{self} cannot be pickled; expected to stay in its process. Keep its `ranks`, and call"
            " new_group(ranks) where they are read."
        )

    def __repr__(self) -> str:
        return f"the group of {shown_ranks(self.ranks)}"


def shown_ranks(ranks: Sequence[int]) -> str:
    """For messages: "ranks 0, 1", the first of them if there are many."""
    more = ", ..." if len(ranks) > _RANKS_IN_MESSAGES else ""
    shown = ", ".join(map(str, ranks[:_RANKS_IN_MESSAGES])) + more
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
