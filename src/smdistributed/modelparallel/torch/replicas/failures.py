# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step that fails on one replica ends on all of them.

A replica that has failed, or has refused its batch, has no gradients to give, and the others would
wait for them. So each of its ranks ends the group that it has with its counterparts, and says why.
Theirs fail then wherever they communicate, most often deep inside of torch's DDP, which hands on
the text of an error and not the error: hence the text is what is looked for.

Of the backends the engine's (`smddp`) carries the reason. With others the counterparts hear no more
than that the group has ended.

Source: our choice; the modelparallel specification, section 3.12, speaks of one pipeline.
"""

from __future__ import annotations

import contextlib
from typing import Any

from smdistributed._common.error_text import error_text
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.torch.job.state import Job

__all__ = ["reason_of_replica", "said_by", "tell_replicas"]

_BEGIN = "the step failed on the replica of rank"
# What the engine, and torch where it calls Python, put behind a reason.
_ENDS = ("\nWhere the ranks of this group are:", "\n\nAt:\n")
_BACKEND = "smddp"


def tell_replicas(job: Job, error: BaseException) -> None:
    """Ends the DP group of this rank, on all its members. Does not wait, raises nothing.

    The group cannot be used again. Where it has ended already, the first reason stays.

    Args:
        job: what this process knows of the others.
        error: what this rank raises.
    """
    members = job.members(GroupKind.MP)
    shown = f"{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
    reason = f"{_BEGIN}{shown}; rank {job.rank} says: {said_by(error)}"
    group: Any = job.process_group(GroupKind.DP)
    with contextlib.suppress(Exception):
        if group.name() == _BACKEND:
            group.abort(reason)
            return
    with contextlib.suppress(Exception):
        group.abort()


def said_by(error: BaseException) -> str:
    """What an error says of its cause."""
    return str(error) if isinstance(error, StepAborted) else error_text(error)


def reason_of_replica(error: BaseException) -> StepAborted | None:
    """What to raise instead of an error that another replica has caused; None if none has."""
    if isinstance(error, StepAborted):
        return None  # it says so already
    _, begin, reason = error_text(error).partition(_BEGIN)
    if not begin:
        return None
    for end in _ENDS:
        reason = reason.partition(end)[0]
    return StepAborted(
        f"{begin}{reason.rstrip()}\nThis replica has ended the step as well, as the gradients of"
        " all are averaged; expected each replica to take it. Correct what that rank says; the"
        " groups of replicas cannot be used again: start anew, or call smp.reset() and smp.init()."
    )
