# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Before the ranks of a job form a group: can they meet, and are they of one job?

torch's `env://` and `tcp://` retry an address that does not resolve until the timeout, and know a
rank by its number only. Two jobs that were started at once with one `MASTER_ADDR` and `MASTER_PORT`
could form a group from rank 0 of the one and rank 1 of the other.
"""

from __future__ import annotations

import functools
import os
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from smdistributed._common.discovery import discover
from smdistributed._common.discovery.variables import read_text
from smdistributed._common.host_names import require_resolvable
from smdistributed.collectives.job import another_job, own_job
from smdistributed.dataparallel.engine_errors import documented_errors
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPPeerLost,
    SMDDPTimeoutError,
)

__all__ = ["install", "require_one_job"]

_KEY = "smddp/job"
# A store takes an empty value for no value.
_MARK = "job:"


def install() -> None:
    """Let torch check an address before it tries to connect; once per process.

    Whatever the backend of the group is: torch does not say here. For other backends this changes
    how an error comes, not whether.
    """
    original = getattr(distributed_c10d, "rendezvous", None)
    if original is None:
        return

    @functools.wraps(original)
    def rendezvous(url: str, *args: Any, **kwargs: Any) -> Any:
        _check_address(url)
        return original(url, *args, **kwargs)

    namespace: Any = distributed_c10d
    namespace.rendezvous = rendezvous


def _check_address(url: str) -> None:
    """Raises SMDDPConfigInvalid if ranks cannot find the place where `url` lets them meet."""
    parts = urlparse(str(url))
    with documented_errors():
        if parts.scheme == "tcp" and parts.hostname:
            require_resolvable(parts.hostname)
        if parts.scheme == "env":
            host = read_text(os.environ, "MASTER_ADDR")
            if host is not None:
                require_resolvable(host)
            elif (membership := discover()).source != "none":
                membership.require_master()


def require_one_job(store: Store, rank: int, size: int, timeout: timedelta) -> None:
    """Refuse this rank if it has another job's identity than rank 0, before it takes part.

    Args:
        store: of the default group.
        rank, size: of this process in it.
        timeout: for rank 0 to come.

    Raises:
        SMDDPConfigInvalid: rank 0 is of another job; or this is rank 0, and that of another job is
            here already. The other ranks of that job are not disturbed.
        SMDDPTimeoutError: rank 0 has not come in time.
        SMDDPPeerLost: the store has failed.
    """
    if size == 1:
        return
    with documented_errors():
        mine = own_job(rank)
    start = time.monotonic()
    try:
        if rank == 0:
            theirs = bytes(store.compare_set(_KEY, "", _MARK + mine)).decode()
        else:
            store.set(f"{_KEY}/{rank}", _MARK)
            store.wait([_KEY], timeout)
            theirs = bytes(store.get(_KEY)).decode()
        theirs = theirs.removeprefix(_MARK)
    except RuntimeError as error:  # torch's store errors; ours derive from other built-ins
        if time.monotonic() - start > 0.9 * timeout.total_seconds():
            raise SMDDPTimeoutError(
                f"rank {rank} reached its timeout of {timeout.total_seconds():g} s while the group"
                f" was being formed; {_who_is_missing(store, rank, size)}. Expected all ranks to"
                " start. Look at their logs, or raise the timeout."
            ) from error
        raise SMDDPPeerLost(
            f"the rendezvous store failed when rank {rank} asked for the job of rank 0 ({error});"
            " expected it to answer until all ranks have met. Read the log of the rank that serves"
            " it (usually rank 0) first."
        ) from error
    if theirs != mine:
        raise SMDDPConfigInvalid(another_job(rank, mine, theirs))


def _who_is_missing(store: Store, rank: int, size: int) -> str:
    """In words. Where rank 0 serves the store, it waits there for all others before it speaks."""
    others = [peer for peer in range(1, size) if peer != rank]
    try:
        missing = [peer for peer in others if not store.check([f"{_KEY}/{peer}"])]
    except RuntimeError:
        return "the store is gone: rank 0, which usually serves it, has given up or ended"
    if not missing:
        return "rank 0 did not come"
    return (
        f"ranks {missing} of {size} did not come, and rank 0 has not spoken: it may be waiting for"
        " them"
    )
