# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Variables and Python objects of one rank on all of them.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.tensorflow.job import (
    global_process_set,
    require_job,
    require_no_model_parallelism,
)
from smdistributed.dataparallel import exceptions

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Any, root_rank: int, process_set: Any = global_process_set, inplace: bool = False
) -> Any:
    """Sets variables to what they are on one rank.

    Args:
        variables: of TensorFlow or Keras, in the same order on all ranks.
        root_rank: whose.
        process_set: that of all ranks.
        inplace: without effect: variables travel through two buckets either way.

    Returns:
        None; in a graph of TensorFlow 1 the operation to run.

    Raises:
        SMDDPUnsupported: a process set.
        As `smdistributed.dataparallel.tensorflow.broadcast_variables`.
    """
    group = require_job("broadcast_variables")
    common.require_all_ranks(process_set, "broadcast_variables")
    return sdp.broadcast_variables(variables, root_rank, group=group)


@common.named_as_documented
class NoGraph(exceptions.SMDDPError, RuntimeError):
    """There is no graph of TensorFlow 1. Horovod raises a RuntimeError there."""


def broadcast_global_variables(root_rank: int) -> Any:
    """An operation that sets all global variables of a graph of TensorFlow 1 to one rank's.

    Raises:
        SMDDPError: (a RuntimeError) with eager execution.
        As `smdistributed.dataparallel.tensorflow.broadcast_global_variables`.
    """
    if tf.executing_eagerly():
        raise NoGraph(
            "hvd.broadcast_global_variables() was called with eager execution, where TensorFlow"
            " keeps no list of global variables; expected a graph of TensorFlow 1. Use"
            " hvd.broadcast_variables(model.variables, root_rank), and the same for the optimizer's"
            " variables."
        )
    require_no_model_parallelism("broadcast_global_variables")
    require_job("broadcast_global_variables")
    return sdp.broadcast_global_variables(root_rank)


class BroadcastGlobalVariablesHook(sdp.BroadcastGlobalVariablesHook):
    """Sets all global variables to one rank's, once a `tf.compat.v1` session is there.

    Args:
        root_rank: whose.
        device: empty, or a CPU.

    Raises:
        SMDDPUnsupported: another `device`.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        common.require_host("BroadcastGlobalVariablesHook", device=device)
        super().__init__(root_rank)
        self.root_rank = root_rank
        self.device = device

    def begin(self) -> None:
        """As that of TensorFlow's hooks. Raises `SMDDPNotInitialized` before `init()`."""
        require_no_model_parallelism("BroadcastGlobalVariablesHook")
        require_job("BroadcastGlobalVariablesHook")
        super().begin()


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """The object of one rank, on all of them; pickled.

    Raises:
        SMDDPUnsupported: a process set.
        As `smdistributed.dataparallel.tensorflow.broadcast_object`.
    """
    group = require_job("broadcast_object")
    common.require_all_ranks(process_set, "broadcast_object")
    return sdp.broadcast_object(obj, root_rank, session, name, group=group)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object: `broadcast_object` with these arguments."""
    common.require_all_ranks(process_set, "broadcast_object_fn")

    def broadcast_it(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name)

    return broadcast_it


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> list[Any]:
    """The objects of all ranks, in rank order; pickled.

    Raises:
        SMDDPUnsupported: a process set.
        As `smdistributed.dataparallel.tensorflow.allgather_object`.
    """
    group = require_job("allgather_object")
    common.require_all_ranks(process_set, "allgather_object")
    return sdp.allgather_object(obj, session, name, group=group)
