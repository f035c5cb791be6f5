# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks the arguments of a function mean: `CommGroup`, `RankType`, and their checks.

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.job.state import BaseJob

__all__ = ["CommGroup", "RankType", "kind_of", "peer"]


class CommGroup(enum.Enum):
    """A group of ranks, seen from this one: the members of this rank's group of that kind."""

    WORLD = GroupKind.WORLD
    MP_GROUP = GroupKind.MP
    DP_GROUP = GroupKind.DP
    PP_GROUP = GroupKind.PP
    TP_GROUP = GroupKind.TP
    RDP_GROUP = GroupKind.RDP


class RankType(enum.Enum):
    """What a rank counts: the position in the world, or in this rank's group of a kind."""

    WORLD_RANK = GroupKind.WORLD
    MP_RANK = GroupKind.MP
    DP_RANK = GroupKind.DP
    PP_RANK = GroupKind.PP
    TP_RANK = GroupKind.TP
    RDP_RANK = GroupKind.RDP


def kind_of(given: Any, expected: type[enum.Enum], function: str, argument: str) -> GroupKind:
    """The kind of group that an argument names.

    Args:
        given: the argument.
        expected: `CommGroup` or `RankType`.
        function, argument: for the message.

    Raises:
        ConfigError: (a ValueError) it is no member of `expected`.
    """
    if not isinstance(given, expected):
        names = ", ".join(f"smp.{member.name}" for member in expected)
        raise ConfigError(
            f"{function} got {argument}={given!r}; expected a member of smp.{expected.__name__}:"
            f" {names}. Pass one of these, and no process group or list of ranks."
        )
    kind: GroupKind = given.value
    return kind


def peer(job: BaseJob, given: Any, rank_type: Any, function: str, argument: str) -> int:
    """The world rank that is meant by a rank and what it counts.

    Raises:
        ConfigError: (a ValueError) there is no such rank, it is this one, or `rank_type` is no
            `RankType`.
    """
    kind = kind_of(rank_type, RankType, function, "rank_type")
    members = job.members(kind)
    try:
        index = operator.index(given)
    except TypeError:
        index = -1
    if not 0 <= index < len(members):
        raise ConfigError(
            f"{function} got {argument}={given!r}; expected an integer from 0 to"
            f" {len(members) - 1}, as rank {job.rank} counts {len(members)} ranks by"
            f" smp.{rank_type.name}: world ranks {list(members)}. Correct {argument} or rank_type."
        )
    if members[index] == job.rank:
        raise ConfigError(
            f"{function} got {argument}={given!r} by smp.{rank_type.name}, which is rank"
            f" {job.rank} itself; expected another rank. Use the object as it is."
        )
    return members[index]
