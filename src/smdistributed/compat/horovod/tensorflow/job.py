# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who takes part: `init`, `shutdown`, ranks and sizes, the timeline.

The job is that of `smdistributed.dataparallel.tensorflow`: `init` here or there counts once.

In a job of model parallelism all of this means the replicas of the model, and `init` and `shutdown`
do nothing: see `dataparallel.tensorflow.replicas`.

Source: Horovod's public API; see docs/horovod.md. TensorFlow modelparallel specification, section
7.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed._common.log import get_logger
from smdistributed.compat.horovod import common
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.profiler import stop_profiler
from smdistributed.dataparallel.tensorflow import replicas
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.refusals import require_no_refusal

__all__ = [
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "process_set_included_op",
    "rank",
    "rank_op",
    "require_job",
    "require_no_model_parallelism",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

# What Horovod's operation gives for a process set that there is not.
_UNKNOWN_SET = -3


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Meets the other ranks, under whatever launcher; a second call does nothing. Blocks.

    Args:
        comm, process_sets: None or an empty list: all ranks.

    Raises:
        SMDDPUnsupported: another `comm` or `process_sets`.
        As `smdistributed.dataparallel.tensorflow.init`.
    """
    instead = "For some of the ranks use smdistributed.dataparallel.tensorflow.new_group()."
    common.require_all_ranks_in_init(comm, process_sets, instead)
    if replicas.are_told():
        _warn_of_init()
    elif not sdp.is_initialized():
        sdp.init()


@functools.cache
def _warn_of_init() -> None:
    get_logger().warning(
        "hvd.init() was called in a job of model parallelism, where smp.init() does its work; it is"
        " ignored. Leave it out."
    )


def shutdown() -> None:
    """Leaves the job, after all ranks have come; `init` may be called again."""
    if not replicas.are_told():  # else it is not hvd's
        sdp.shutdown()


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since; in model parallelism `smp.init`."""
    return replicas.are_told() or sdp.is_initialized()


def size() -> int:
    """Number of ranks. Raises `SMDDPNotInitialized` (a ValueError too) before `init()`."""
    group = _require_ranks("size")
    return sdp.size() if group is None else group.size()


def rank() -> int:
    """Number of this process, from 0. Raises `SMDDPNotInitialized` before `init()`."""
    group = _require_ranks("rank")
    return sdp.rank() if group is None else group.rank()


def local_size() -> int:
    """Number of ranks on this host. Raises `SMDDPNotInitialized` before `init()`."""
    group = _require_ranks("local_size")
    return sdp.local_size() if group is None else len(_ranks_here(group, "local_size"))


def local_rank() -> int:
    """Number of this process on its host. Raises `SMDDPNotInitialized` before `init()`."""
    group = _require_ranks("local_rank")
    if group is None:
        return sdp.local_rank()
    return _ranks_here(group, "local_rank").index(group.rank())


def cross_size() -> int:
    """Number of hosts with this local rank. Raises `SMDDPNotInitialized` before `init()`."""
    return len(_peers("cross_size"))


def cross_rank() -> int:
    """Number of this host among those. Raises `SMDDPNotInitialized` before `init()`."""
    return _peers("cross_rank").index(rank())


def is_homogeneous() -> bool:
    """Whether all hosts have equally many ranks. Raises `SMDDPNotInitialized` before `init()`."""
    hosts = _ranks_by_host("is_homogeneous")
    return len({len(ranks) for ranks in hosts}) == 1


def rank_op(name: str | None = None) -> Any:
    """`rank()` as a scalar tensor of int32; the rank while the graph is made."""
    return tf.constant(rank(), tf.int32, name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """`size()` as a scalar tensor of int32; the number while the graph is made.

    Raises:
        SMDDPUnsupported: another `process_set_id` than 0, that of all ranks.
    """
    why = "there is one process set, of all ranks"
    common.require_neutral("size_op", "process_set_id", process_set_id, (0,), why, "Leave it out.")
    return tf.constant(size(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> Any:
    """`local_rank()` as a scalar tensor of int32."""
    return tf.constant(local_rank(), tf.int32, name=name)


def local_size_op(name: str | None = None) -> Any:
    """`local_size()` as a scalar tensor of int32."""
    return tf.constant(local_size(), tf.int32, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """A scalar tensor of int32: 1 for the process set of all ranks, -3 for others: unknown."""
    _require_ranks("process_set_included_op")
    return tf.constant(1 if process_set_id == 0 else _UNKNOWN_SET, tf.int32, name=name)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to record this rank's operations; `stop_timeline` writes them.

    Args:
        file_path: every rank writes a file of its own: `timeline.json` becomes `timeline.3.json`.
        mark_cycles: False; there are no cycles here.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPError: a timeline is being recorded already.
    """
    _require_ranks("start_timeline")
    common.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Writes what `start_timeline` began. Raises `SMDDPNotInitialized` before `init()`."""
    _require_ranks("stop_timeline")
    stop_profiler()


global_process_set = common.ProcessSet.of_all(rank, size)


def require_job(caller: str) -> Group | None:
    """The ranks among which `hvd.<caller>()` communicates, as `group=`; None: all of the job.

    Raises:
        SMDDPNotInitialized: (a ValueError too) before `init()`.
        SMDDPUnsupported: in a step of model parallelism, also where there is one replica: the
            script is to run on several.
    """
    group = _require_ranks(caller)
    require_no_refusal(f"hvd.{caller}()")
    return group


def _require_ranks(caller: str) -> Group | None:
    """As `require_job`, for what communicates with nobody: a step may ask for ranks and sizes."""
    group = replicas.replicas()
    if group is None and not sdp.is_initialized():
        raise common.not_initialized(caller)
    return group


def require_no_model_parallelism(caller: str) -> None:
    """Raises `SMDDPUnsupported` in a job of it: for what reduces by itself, among all ranks."""
    if replicas.are_told():
        raise SMDDPUnsupported(
            f"hvd.{caller}() was used in a job of model parallelism, where ranks have different"
            " variables; expected hvd.allreduce() of what steps return. Write gradients ="
            " [hvd.allreduce(g.accumulate()) for g in gradients] before apply_gradients()."
        )


def _ranks_here(group: Group, caller: str) -> list[int]:
    """Those of a group that are on this host."""
    return next(ranks for ranks in _by_host(group, caller) if group.rank() in ranks)


def _by_host(group: Group, caller: str) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for number, row in enumerate(group.communicator(caller).topology()):
        found.setdefault(row["host"], []).append(number)
    return list(found.values())


def _ranks_by_host(caller: str) -> list[list[int]]:
    found = _by_host(resolve_group(_require_ranks(caller), caller), caller)
    mine = next(ranks for ranks in found if rank() in ranks)
    if len(mine) != local_size():
        raise SMDDPUnsupported(
            f"hvd.{caller}() found {len(mine)} ranks on hosts of this host's name, and the launcher"
            f" says that there are {local_size()} on this one; expected hosts with names of their"
            " own. Name them differently, or use hvd.local_rank() and hvd.local_size() alone."
        )
    return found


def _peers(caller: str) -> list[int]:
    """The ranks with this one's local rank, one of each host that has as many."""
    hosts = _ranks_by_host(caller)
    place = next(ranks for ranks in hosts if rank() in ranks).index(rank())
    return [ranks[place] for ranks in hosts if len(ranks) > place]
