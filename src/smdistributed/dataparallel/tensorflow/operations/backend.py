# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which way collectives are carried out, chosen once, when a job begins; and its open groups.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.collectives import Communicator, ReduceOp
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow.groups import WORLD
from smdistributed.dataparallel.tensorflow.operations import failed_steps, interrupts, order

__all__ = ["begin", "close_group", "current", "end", "lane_of", "open_group", "own_rank"]

_backend: Any = None
# By number: the engines of the groups that this process is in.
_open: dict[int, Communicator] = {}


def begin(world: Communicator) -> None:
    """A job begins, with the group of all ranks: chooses the way.

    Raises:
        SMDDPConfigInvalid: `SMDDP_TF_OPERATIONS=kernels`, and they do not load.
    """
    global _backend
    _backend = _agreed(_choose(), world)
    open_group(WORLD, world)


def end() -> None:
    """The job ends: operations fail from now on, wherever they were built."""
    for number in list(_open):
        close_group(number)


def open_group(number: int, group: Communicator) -> None:
    """Operations that are given this number run in this group from now on."""
    _backend.set_group(number, group)
    _open[number] = group
    interrupts.watch(_open)
    failed_steps.watch(_open)


def close_group(number: int) -> None:
    """Operations that are given this number fail from now on, wherever they were built."""
    if _open.pop(number, None) is not None:
        _backend.clear_group(number)
    if number != WORLD:  # whose number is used again
        order.forget(number)


def current() -> Any:
    """The module that makes operations: `kernels` or `python_functions`."""
    return _backend


def lane_of(number: int) -> int:
    """Operations of one lane are kept in the order of the program: those of a group, by its number.

    Of all groups where an operation that waits holds a thread: TensorFlow has a few only, and would
    give the last one to another group's operation on each rank.
    """
    return number if _backend.HOLDS_NO_THREAD else WORLD


def own_rank(number: int) -> int | None:
    """This process's rank in a group; None: the group has been closed."""
    group = _open.get(number)
    return None if group is None else group.rank


def _agreed(backend: Any, group: Communicator) -> Any:
    """What all ranks can do: the two ways do not understand each other."""
    from smdistributed.dataparallel.tensorflow.operations import python_functions

    have_kernels = np.array([backend is not python_functions], np.uint8)
    group.all_reduce(have_kernels, ReduceOp.MIN)
    if have_kernels[0] or backend is python_functions:
        return backend
    get_logger().warning(
        "smddp runs its collectives as Python functions in TensorFlow's graph, since another rank"
        " has no kernels, or has SMDDP_TF_OPERATIONS=python."
    )
    return python_functions


def _choose() -> Any:
    from smdistributed.dataparallel.tensorflow.operations import python_functions

    wanted = process_settings().tf_operations
    if wanted == "python":
        return python_functions
    try:
        from smdistributed.dataparallel.tensorflow.operations import kernels
    except ImportError as error:
        is_available, reason = False, str(error)
    else:
        is_available, reason = kernels.is_available()
        if is_available:
            return kernels
    if wanted == "kernels":
        raise SMDDPConfigInvalid(
            f"SMDDP_TF_OPERATIONS='kernels', and they do not load: {reason}. Leave it unset to use"
            " Python functions then."
        )
    get_logger().warning(
        "smddp runs its collectives as Python functions in TensorFlow's graph: %s. They work, and"
        " hold a thread of TensorFlow's while they wait.",
        reason,
    )
    return python_functions
