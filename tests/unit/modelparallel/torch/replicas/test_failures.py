# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How a rank finds the reason of another replica in what the engine and torch make of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.torch.replicas.failures import reason_of_replica, tell_replicas


class Group:
    """A process group that notes how it was ended."""

    def __init__(self, backend: str, ends_badly: bool = False) -> None:
        self._backend = backend
        self._ends_badly = ends_badly
        self.reasons: list[tuple[str, ...]] = []

    def name(self) -> str:
        return self._backend

    def abort(self, *reason: str) -> None:
        self.reasons.append(reason)
        if self._ends_badly:
            raise RuntimeError("it has ended already")


class Job:
    def __init__(self, group: Group, members: tuple[int, ...] = (2, 3)) -> None:
        self.rank = members[-1]
        self._group = group
        self._members = members

    def members(self, kind: Any) -> tuple[int, ...]:
        return self._members

    def process_group(self, kind: Any) -> Group:
        return self._group


def _reason(error: Exception, members: tuple[int, ...] = (2, 3)) -> str:
    group = Group("smddp")
    tell_replicas(cast(Any, Job(group, members)), error)
    (reason,) = group.reasons
    return reason[0]


def test_the_engine_carries_ranks_and_error() -> None:
    assert _reason(ValueError("of mine")) == (
        "the step failed on the replica of ranks 2, 3; rank 3 says: ValueError: of mine"
    )
    assert "replica of rank 5; rank 5 says" in _reason(ValueError(), (5,))


def test_other_backends_only_end() -> None:
    group = Group("gloo")
    tell_replicas(cast(Any, Job(group)), ValueError("of mine"))
    assert group.reasons == [()]


@pytest.mark.parametrize("backend", ["smddp", "gloo"])
def test_a_group_that_has_ended_harms_nobody(backend: str) -> None:
    tell_replicas(cast(Any, Job(Group(backend, ends_badly=True))), ValueError("of mine"))


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "all_reduce #7 on rank 0 of 2 (host a): rank 1 (host a, pid 7) aborted the group: {}",
        "Got the following error when running the callback: SMDDPPeerLost: {}\n\nAt:\n  work.py(1)",
        "broadcast #2: rank 1 aborted the group: {}\nWhere the ranks of this group are:\n  rank 0",
    ],
)
def test_the_reason_is_found_in_whatever_surrounds_it(around: str) -> None:
    reason = _reason(ValueError("of mine,\n  or two lines"))
    found = reason_of_replica(RuntimeError(around.format(reason)))
    assert isinstance(found, StepAborted)
    first, _, rest = str(found).partition("\nThis replica has ended the step as well")
    assert first == reason
    assert "smp.reset()" in rest


def test_other_errors_stay_what_they_are() -> None:
    assert reason_of_replica(ConnectionError("rank 1 died")) is None
    assert reason_of_replica(StepAborted(_reason(ValueError("of mine")))) is None
