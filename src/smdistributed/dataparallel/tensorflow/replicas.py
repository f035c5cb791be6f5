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

_group: Group | None = None
_is_elsewhere: Callable[[Any], bool] | None = None


def tell(group: Group, is_elsewhere: Callable[[Any], bool]) -> None:
    """A job of model parallelism has begun.

    Args:
        group: of this rank; of this rank alone where there are no replicas.
        is_elsewhere: whether a variable is in another part of the model.
    """
    global _group, _is_elsewhere
    _group, _is_elsewhere = group, is_elsewhere


def forget() -> None:
    """It has ended."""
    global _group, _is_elsewhere
    _group, _is_elsewhere = None, None


def are_told() -> bool:
    """Whether a job of model parallelism says which ranks these are."""
    return _group is not None


def replicas() -> Group | None:
    """The group; None: all ranks of the job."""
    return _group


def is_elsewhere(variable: Any) -> bool:
    """Whether no rank that trains the same has a variable: scripts may list the whole model's."""
    return _is_elsewhere is not None and _is_elsewhere(variable)
