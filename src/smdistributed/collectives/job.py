# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether ranks that have met are of one job, in words; see `_common.discovery.job`."""

import os

from smdistributed._common.discovery import discover
from smdistributed._common.discovery.job import RUN_ID, job_identity
from smdistributed._common.discovery.variables import read_text
from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings

__all__ = ["another_job", "own_job"]

_NOBODY = ""

_has_warned = False


def own_job(rank: int) -> str:
    """Returns this process's job as text to compare; "" if nothing tells.

    Rank 0 then warns, once per process, unless something else keeps ranks of two jobs apart.
    """
    source = discover().source
    job = job_identity(os.environ, source) or _NOBODY
    if job == _NOBODY and rank == 0:
        _warn_of_no_identity(source)
    return job


def another_job(rank: int, mine: str, theirs: str) -> str:
    """Returns the text of an error: `rank` is of job `mine`, and rank 0 of `theirs`."""
    return (
        f"rank {rank} belongs to {_title(mine)}, but the rank 0 that it met"
        f" belongs to {_title(theirs)}; expected ranks of one job. Look whether two jobs use one"
        f" MASTER_ADDR and MASTER_PORT (here {_where()}), and give each a port of its own. If the"
        f" ranks are of one job, set {RUN_ID} to the same text on all of them."
    )


def _title(job: str) -> str:
    return "a job without an identity" if job == _NOBODY else f"the job {job}"


def _where() -> str:
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"


def _warn_of_no_identity(source: str) -> None:
    global _has_warned
    is_apart = (
        source == "none"  # rank and size are arguments: the caller chose the place to meet
        or process_settings().token is not None
        # torchrun serves the store itself, on a port that no second one can have.
        or read_text(os.environ, "TORCHELASTIC_USE_AGENT_STORE") == "True"
    )
    if _has_warned or is_apart:
        return
    _has_warned = True
    get_logger().warning(
        "nothing tells which job this rank belongs to: if a second job is started with the same"
        " MASTER_ADDR and MASTER_PORT (%s), ranks of both could form one group. Set %s to the same"
        " text on all ranks of this job, and to another one in every job, or start with smddprun,"
        " which does.",
        _where(),
        RUN_ID,
    )
