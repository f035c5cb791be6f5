# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the same collective in the traces of several ranks.

The engine numbers the collectives of a group alike on all ranks, so group and number name one. A
group may have been made twice under one name (`destroy_process_group`, then `init_process_group`),
which starts the numbers again; such generations are counted from the first one on, because the
bounded memory of a trace keeps the first operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from smdistributed._common.errors import ConfigurationError
from smdistributed.dataparallel.trace.model import (
    FULL_EXCHANGES,
    POINT_TO_POINT,
    Operation,
    RankTrace,
)

__all__ = ["Collective", "Member", "match_collectives"]


class Member(NamedTuple):
    """One rank's part in a collective: `traces[trace].operations[operation]`."""

    trace: int
    operation: int


class Collective(NamedTuple):
    """One collective that no rank could finish before all had started, and who took part."""

    kind: str
    members: tuple[Member, ...]


class _Key(NamedTuple):
    group: str
    ranks: tuple[int, ...]  # tells apart groups of one name; empty if unknown
    generation: int
    sequence: int


def match_collectives(traces: Sequence[RankTrace]) -> list[Collective]:
    """Returns the collectives that at least two traces have, and that tie their clocks together.

    Those that failed, that moved nothing, or that a rank may finish early (broadcasts, for example)
    are left out: they say nothing about when other ranks started.

    Raises:
        ConfigurationError: ranks disagree on what an operation was, so these are different runs.
    """
    found: dict[_Key, list[Member]] = {}
    for index, trace in enumerate(traces):
        for key, number in _keys(trace).items():
            found.setdefault(key, []).append(Member(index, number))
    matched = []
    for key, members in found.items():
        operations = [traces[m.trace].operations[m.operation] for m in members]
        if any(op.kind != operations[0].kind for op in operations if not op.error):
            _refuse(traces, key, members)
        if len(members) > 1 and all(_ties(op) for op in operations):
            matched.append(Collective(operations[0].kind, tuple(members)))
    return matched


def _keys(trace: RankTrace) -> Mapping[_Key, int]:
    """The key of each collective of a trace, and its place among the operations."""
    keys: dict[_Key, int] = {}
    numbered = [
        (number, op) for number, op in enumerate(trace.operations) if op.kind not in POINT_TO_POINT
    ]
    numbered.sort(key=lambda pair: (pair[1].group, pair[1].queued_ns, pair[1].sequence))
    for group, members in itertools.groupby(numbered, key=lambda pair: pair[1].group):
        ranks = tuple(trace.info.ranks_of(group) or ())
        generation, before = 0, 0
        for number, operation in members:
            if operation.sequence <= before:
                generation += 1
            before = operation.sequence
            keys[_Key(group, ranks, generation, operation.sequence)] = number
    return keys


def _ties(operation: Operation) -> bool:
    return (
        operation.kind in FULL_EXCHANGES
        and (operation.num_bytes > 0 or operation.kind == "barrier")
        and operation.algorithm != "alone"
        and not operation.error
    )


def _refuse(traces: Sequence[RankTrace], key: _Key, members: Sequence[Member]) -> None:
    texts = [
        f"{traces[m.trace].operations[m.operation].kind} in {traces[m.trace].path}"
        for m in members[:4]
    ]
    raise ConfigurationError(
        f"operation {key.sequence} of group {key.group} is {', '.join(texts)}; expected the same on"
        " all ranks. Give the traces of one run: old files may lie beside new ones."
    )
