# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which way collectives are carried out, and for which group: chosen once, when a job begins.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.collectives import Communicator, ReduceOp
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow.operations import failed_steps, interrupts

__all__ = ["close_group", "current", "open_group", "own_rank"]

_backend: Any = None
_group: Communicator | None = None


def open_group(group: Communicator) -> None:
    """Makes a group the one whose ranks take part, and chooses the way.

    Raises:
        SMDDPConfigInvalid: `SMDDP_TF_OPERATIONS=kernels`, and they do not load.
    """
    global _backend, _group
    backend = _agreed(_choose(), group)
    backend.set_group(group)
    _backend, _group = backend, group
    interrupts.watch(group)
    failed_steps.watch(group)


def close_group() -> None:
    """Operations fail from now on, wherever they were built."""
    global _group
    if _group is not None:
        interrupts.end_watch()
        failed_steps.end_watch()
        _backend.clear_group()
        _group = None


def current() -> Any:
    """The module that makes operations: `kernels` or `python_functions`."""
    return _backend


def own_rank() -> int | None:
    """This process's rank in the group; None: there is no group."""
    return None if _group is None else _group.rank


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
