# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks for `model.fit` on several ranks.

They derive from the `Callback` of the Keras in use, which is imported when one of them is first
asked for, and not with this module: of Keras 3 or tf-keras, whichever of the two has been imported;
of `tf.keras` if none or both have.

Source: dataparallel specification, section 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.broadcasts import broadcast_variables
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.keras.checkpoints import BestModel
from smdistributed.dataparallel.tensorflow.keras.in_use import keras_in_use
from smdistributed.dataparallel.tensorflow.keras.learning_rates import (
    LearningRateSchedule,
    LearningRateWarmup,
)
from smdistributed.dataparallel.tensorflow.keras.logs import average_logs

if TYPE_CHECKING:  # they are made on demand, see __getattr__
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


class _Broadcast:
    """Gives all ranks the weights and the optimizer's variables of one, after the first batch.

    After it, and not before, since a model and an optimizer may make their variables only then; so
    the first batch trains what each rank began with. Begin with one seed, or with one file of
    weights, where even that must be alike on all ranks.

    What a rank counts or draws for itself stays its own: metrics, the state of dropout, gradients
    that it accumulates for a later step.

    Args:
        root_rank: whose variables; 0 <= root_rank < size(); with a group, a rank in the group.
        device: must be empty.
        group: of `new_group`, whose ranks train together; None: all ranks.

    Raises:
        SMDDPUnsupported: `device` is set.

    Source: specification, section 8.
    """

    def __init__(self, root_rank: int, device: str = "", *, group: Group | None = None) -> None:
        super().__init__()
        _require_no_device(device)
        self.root_rank = root_rank
        self.device = device
        self.group = group
        self._done_for: Any = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, after the first batch (or first `steps_per_execution` batches) of a model."""
        model = self.model  # type: ignore[attr-defined]
        if self._done_for is model:
            return
        to_run = broadcast_variables(_variables(model), self.root_rank, group=self.group)
        if to_run is not None:  # tf-keras, without eager execution
            tf.compat.v1.keras.backend.get_session().run(to_run)
        self._done_for = model


class _MetricAverage:
    """Averages the metrics of an epoch over all ranks, those of its validation included.

    Numbers in `logs` are replaced by their averages, in the sorted order of their names, all in one
    collective; what is no number stays. All ranks must have the same names. Callbacks that stand
    after this one see averages, as does what `fit` returns: put it before `ModelCheckpoint`,
    `EarlyStopping`, `ReduceLROnPlateau` and loggers.

    The average is that of the ranks' values. For losses and accuracies over equally many examples
    it is the value over all examples; for others (AUC, say) it is not.

    Args:
        device: must be empty.
        group: of `new_group`, whose ranks train together; None: all ranks.

    Raises:
        SMDDPUnsupported: `device` is set.
        SMDDPMismatch: at the end of an epoch, on all ranks: names or shapes differ.

    Source: specification, section 8.
    """

    def __init__(self, device: str = "", *, group: Group | None = None) -> None:
        super().__init__()
        _require_no_device(device)
        self.device = device
        self.group = group

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages `logs` in place."""
        average_logs({} if logs is None else logs, self.group)


# With the name of the class of Keras that each derives from.
_BODIES: dict[str, tuple[type, str]] = {
    "BestModelCheckpoint": (BestModel, "ModelCheckpoint"),
    "BroadcastGlobalVariablesCallback": (_Broadcast, "Callback"),
    "LearningRateScheduleCallback": (LearningRateSchedule, "Callback"),
    "LearningRateWarmupCallback": (LearningRateWarmup, "Callback"),
    "MetricAverageCallback": (_MetricAverage, "Callback"),
}


def __getattr__(name: str) -> Any:
    if name not in _BODIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    body, base = _BODIES[name]
    namespace = {"__doc__": body.__doc__, "__module__": __name__, "__qualname__": name}
    made = type(name, (body, getattr(keras_in_use().callbacks, base)), namespace)
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *_BODIES})


def _require_no_device(device: Any) -> None:
    if device:
        raise SMDDPUnsupported("device is not supported")


def _variables(model: Any) -> list[Any]:
    """Of a model and its optimizer, each once, in the same order on all ranks."""
    found = list(model.weights)
    of_rank: set[int] = set()
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        variables = optimizer.variables
        found.extend(variables() if callable(variables) else variables)
        for part in _parts(optimizer):
            found.extend(_uncounted_variables(part))
            # Sums of what this rank saw, which are not reduced yet.
            of_rank.update(map(id, getattr(part, "_accumulated_gradients", None) or ()))
    chosen = {id(variable): variable for variable in found if id(variable) not in of_rank}
    return list(chosen.values())


def _parts(optimizer: Any) -> list[Any]:
    """An optimizer, what it scales the loss of, and what that is made of."""
    inner = getattr(optimizer, "inner_optimizer", None)
    whole = optimizer if inner is None else inner
    return [optimizer, inner, *(getattr(whole, "optimizers", None) or ())]


def _uncounted_variables(optimizer: Any) -> list[Any]:
    """What an optimizer of tf-keras does not count among its variables: rates and loss scale."""
    scale = getattr(optimizer, "_loss_scale", None)
    candidates = [
        getattr(optimizer, "_learning_rate", None),
        *getattr(optimizer, "_hyper", {}).values(),
        getattr(scale, "current_loss_scale", None),
        getattr(scale, "counter", None),
    ]
    return [each for each in candidates if isinstance(each, tf.Variable)]
