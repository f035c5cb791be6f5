# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics that layers collect, such as those of `BatchNormalization`, over the replicas.

Each replica sees batches of its own, and so its statistics part from those of the others. Nothing
averages them by itself: gradients are what replicas exchange.

Source: our choice.
"""

from __future__ import annotations

from typing import Any

from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.operations.refusals import require_no_refusal
from smdistributed.dataparallel.tensorflow.reductions import grouped_allreduce
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.model.distributed_model import DistributedModel
from smdistributed.modelparallel.tensorflow.variables import raw

__all__ = ["average_statistics"]

_CALLER = "smp.average_statistics()"


@not_converted
def average_statistics(model: DistributedModel) -> None:
    """Sets the statistics of a model to their averages over the replicas.

        for epoch in range(epochs):
            for images, labels in dataset:
                train_step(images, labels)
            smp.average_statistics(model)  # evaluation is the same on all replicas from here on

    Statistics are the model's floating-point variables that were made with `trainable=False`:
    moving means and variances of `BatchNormalization`. The average of moving variances leaves out
    how far the means of the replicas are apart. Weights of frozen layers, counters and states of
    random generators stay as they are.

    All ranks call it, after the first step. It waits for the ranks with the same partition, and
    sends nothing if there is one replica. Eagerly and in a `tf.function`.

    Args:
        model: that of this job.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        TypeError: another model.
        RuntimeError: before the first step, when variables have no values.
        SMDDPUnsupported: in a function with `@smp.step`.
        SMDDPError: the replicas could not exchange them, as in `hvd.allreduce`.

    Source: our choice.
    """
    job = state.require(_CALLER)
    if not isinstance(model, DistributedModel):
        raise TypeError(
            f"{_CALLER} got a {type(model).__name__}; expected the smp.DistributedModel of this"
            " job. Pass that."
        )
    require_no_refusal(_CALLER)
    if not model._smp_has_values():
        raise RuntimeError(
            f"{_CALLER} was called before the first step, when the variables of"
            f" {type(model).__name__} have no values; expected a call after it. Call a function"
            " with @smp.step first."
        )
    statistics = [each for each in model.non_trainable_weights if _is_statistic(raw(each))]
    group = job.replica_group
    if group is None or group.size() == 1 or not statistics:
        return
    averages = grouped_allreduce([raw(each) for each in statistics], group=group)
    for variable, average in zip(statistics, averages, strict=True):
        variable.assign(average)


def _is_statistic(variable: Any) -> bool:
    return bool(variable.dtype.is_floating and not variable.trainable)
