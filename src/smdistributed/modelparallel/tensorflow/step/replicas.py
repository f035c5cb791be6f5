# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step that fails on one replica is told to the others.

A replica that has failed has no gradients to give, and the others wait for them in
`allreduce(..., group=...)`. So each of its ranks ends the group that it has with its counterparts,
and says why. That group cannot be used again.

Source: our choice.
"""

from __future__ import annotations

import contextlib

from smdistributed._common.error_text import error_text
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.job.state import Job

__all__ = ["tell_replicas"]


def tell_replicas(job: Job, error: BaseException) -> None:
    """Ends the DP group of this rank, on all its members. Does not wait, raises nothing.

    Where it has ended already, the first reason stays.

    Args:
        error: what this rank raises.
    """
    group = job.replica_group
    if group is None or group.size() == 1:
        return
    said = str(error) if isinstance(error, StepAborted) else error_text(error)
    members = job.members(GroupKind.MP)
    shown = f"{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
    with contextlib.suppress(Exception):
        group.communicator("a step").abort(
            f"the step failed on the replica of rank{shown}; rank {job.rank} says: {said}"
        )
