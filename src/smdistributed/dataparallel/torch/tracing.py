# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tells the profiler what torch knows: this rank's place in the job, and who is in which group."""

from __future__ import annotations

import secrets
from typing import Any

from torch._C._distributed_c10d import Store

from smdistributed.dataparallel.trace import recorder
from smdistributed.dataparallel.trace.session import session

__all__ = ["note_group"]


def note_group(options: Any) -> None:
    """Note a group that torch has just made.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, name, ranks.
    """
    ranks = list(options.global_ranks_in_group)
    if not ranks:  # the default group, hence the job
        ranks = list(range(options.group_size))
        job = _agree_on_job(options.store) if recorder.is_recording else ""
        session.note_job(options.group_rank, options.group_size, job)
    session.note_group(str(options.group_id), ranks)


def _agree_on_job(store: Store) -> str:
    """A name that all ranks get and no other job has: the proposal of whoever comes first.

    Not a collective: a rank that does not record leaves nobody waiting.
    """
    name: bytes = store.compare_set("smddp/trace/job", "", secrets.token_hex(8))
    return name.decode()
