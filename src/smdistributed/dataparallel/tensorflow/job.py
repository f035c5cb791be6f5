# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""This process's place in the job: who it is, and the group of all ranks.

One state for the whole process: `init` through `smdistributed.dataparallel.tensorflow` and through
its `keras` module count as one.

Source: dataparallel specification, sections 3 and 7.2.
"""

from __future__ import annotations

import dataclasses
import os
import threading

from smdistributed import collectives
from smdistributed._common.log import get_logger
from smdistributed.dataparallel.engine_errors import ENGINE_ERRORS, documented_errors
from smdistributed.dataparallel.exceptions import (
    SMDDPAlreadyInitialized,
    SMDDPMismatch,
    SMDDPNotInitialized,
)
from smdistributed.dataparallel.trace.session import session as trace_session

__all__ = [
    "communicator",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

_GROUP_NAME = "default"


@dataclasses.dataclass(frozen=True)
class _Job:
    communicator: collectives.Communicator
    local_rank: int
    local_size: int


_lock = threading.Lock()
_job: _Job | None = None


def init() -> None:
    """Joins the group of all processes of this job. Blocks until all have met.

    Works under any launcher (smddprun, torchrun's variables, mpirun, srun, Ray, SageMaker); in a
    process that no launcher started the group has this one rank.

    Raises:
        SMDDPAlreadyInitialized: (a RuntimeError) it has been called, here or through `keras`.
        SMDDPConfigInvalid: a variable has a value that cannot work.
        SMDDPTimeoutError, SMDDPPeerLost: the ranks did not all meet.
    """
    global _job
    from smdistributed.dataparallel.tensorflow import operations
    from smdistributed.dataparallel.tensorflow.operations.uncaught import show_documented_errors

    with _lock:
        if _job is not None:
            raise SMDDPAlreadyInitialized(
                "init() called more than once. smdistributed.dataparallel is already initialized."
            )
        with documented_errors():
            group = collectives.init(name=_GROUP_NAME, errors=ENGINE_ERRORS)
        try:
            operations.open_group(group)
        except BaseException:
            group.close()
            raise
        show_documented_errors()
        alone = group.world_size == 1
        _job = _Job(
            group,
            local_rank=0 if alone else int(os.environ["LOCAL_RANK"]),
            local_size=1 if alone else int(os.environ["LOCAL_WORLD_SIZE"]),
        )
        trace_session.note_job(group.rank, group.world_size)
        trace_session.note_group(_GROUP_NAME, range(group.world_size))
        if group.rank == 0:
            get_logger().info("smddp for TensorFlow: %d ranks", group.world_size)


def is_initialized() -> bool:
    """Whether this process is in a job: `init()` was called, and `shutdown()` was not."""
    return _job is not None


def shutdown() -> None:
    """Waits for all ranks, then leaves the group; `init()` may be called again.

    Optional: a process may end without it. Without a group this does nothing. After a mismatch,
    which has been raised where it was found, it leaves without waiting and without an error.
    """
    global _job
    from smdistributed.dataparallel.tensorflow import operations

    with _lock:
        if _job is None:
            return
        has_failed = any(
            record["group"] == _GROUP_NAME and record["state"].startswith("failed")
            for record in collectives.flight_record()
        )
        try:
            _job.communicator.barrier()
        except SMDDPMismatch:
            if not has_failed:  # else it has been told
                raise
        finally:
            operations.close_group()
            _job.communicator.close()
            _job = None


def size() -> int:
    """Number of processes of the job."""
    return communicator("size()").world_size


def rank() -> int:
    """Rank of this process among all of the job, 0 to `size() - 1`."""
    return communicator("rank()").rank


def local_size() -> int:
    """Number of processes of the job on this host."""
    return _require("local_size()").local_size


def local_rank() -> int:
    """Rank of this process among those on its host; the GPU it should use."""
    return _require("local_rank()").local_rank


def communicator(caller: str) -> collectives.Communicator:
    """The group of all ranks.

    Raises:
        SMDDPNotInitialized: (a RuntimeError) there is none yet; the text names the caller.
    """
    return _require(caller).communicator


def _require(caller: str) -> _Job:
    job = _job
    if job is None:
        raise SMDDPNotInitialized(
            f"{caller} was called before init(); expected a process that has joined its job. Call"
            " smdistributed.dataparallel.tensorflow.init() first, once per process."
        )
    return job
