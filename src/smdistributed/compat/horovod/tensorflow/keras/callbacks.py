# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's callbacks for `model.fit`.

They are derived from those of `smdistributed.dataparallel.tensorflow.keras.callbacks`, when one is
asked for; so this imports no Keras.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.tensorflow.job import require_job, require_no_model_parallelism
from smdistributed.dataparallel.tensorflow.keras import callbacks

if TYPE_CHECKING:  # see __getattr__
    BestModelCheckpoint: Any
    BroadcastGlobalVariablesCallback: Any
    LearningRateScheduleCallback: Any
    LearningRateWarmupCallback: Any
    MetricAverageCallback: Any

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_WHY = "all variables of a model are broadcast"
_INSTEAD = "Set such variables again in a callback of your own that stands after this one."


class _InJob:
    """Training begins after `init()`; else, at once, what Horovod raises there."""

    def on_train_begin(self, logs: Any = None) -> None:
        require_no_model_parallelism(f"callbacks.{type(self).__name__}")
        require_job(f"callbacks.{type(self).__name__}")
        parent: Any = super()
        parent.on_train_begin(logs)


class _Broadcast(_InJob):
    """Horovod's arguments; `local_variables` must be empty."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        caller = "callbacks.BroadcastGlobalVariablesCallback"
        neutral: tuple[Any, ...] = (None, [], ())
        common.require_neutral(caller, "local_variables", local_variables, neutral, _WHY, _INSTEAD)
        parent: Any = super()
        parent.__init__(root_rank, device)

    register_local_var = common.refused(
        "callbacks.BroadcastGlobalVariablesCallback.register_local_var", _WHY, _INSTEAD
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = getattr(callbacks, name)
    mixin = _Broadcast if name == "BroadcastGlobalVariablesCallback" else _InJob
    made = type(name, (mixin, made), {"__doc__": made.__doc__, "__module__": __name__})
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
