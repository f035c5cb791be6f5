# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks train the same: all of the job, or those that model parallelism says, and what.

Front ends for scripts of other libraries, which know of no parts of a model, mean these ranks.
Model parallelism stands above this package, so it tells when its job begins and ends.

Source: TensorFlow modelparallel specification, section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smdistributed.dataparallel.tensorflow.groups import Group

__all__ = ["are_told", "forget", "is_elsewhere", "replicas", "tell"]

_ask: Callable[[str], Group] | None = None
_is_elsewhere: Callable[[Any], bool] | None = None


def tell(ask: Callable[[str], Group], is_elsewhere: Callable[[Any], bool]) -> None:
    """A job of model parallelism has begun.

    Args:
        ask: gives the group of this rank; it is called with the name of a caller, for messages, and
            raises what is wrong with the call.
        is_elsewhere: whether a variable is in another part of the model.
    """
    global _ask, _is_elsewhere
    _ask, _is_elsewhere = ask, is_elsewhere


def forget() -> None:
    """It has ended."""
    global _ask, _is_elsewhere
    _ask, _is_elsewhere = None, None


def are_told() -> bool:
    """Whether a job of model parallelism says which ranks these are."""
    return _ask is not None


def replicas(caller: str) -> Group | None:
    """The group; None: all ranks of the job.

    Raises:
        Exception: as the job of model parallelism has it.
    """
    return None if _ask is None else _ask(caller)


def is_elsewhere(variable: Any) -> bool:
    """Whether no rank that trains the same has a variable: scripts may list the whole model's."""
    return _is_elsewhere is not None and _is_elsewhere(variable)
