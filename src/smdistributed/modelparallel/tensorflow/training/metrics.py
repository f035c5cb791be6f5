# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What replicas have measured, as one.

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.reductions import oob_allreduce
from smdistributed.modelparallel.tensorflow.variables import raw

__all__ = ["average_states"]


def average_states(metrics: Sequence[Any], group: Group) -> None:
    """Gives metrics the averages of their variables over the ranks of a group.

    States are sums and counts, and results are quotients of these: with averages of both they are
    results of all data, also where replicas have different weights. A metric with a state that has
    no average stays as it is.
    """
    of_metrics = [[raw(each) for each in metric.variables] for metric in metrics]
    states = [
        state
        for of_one in of_metrics
        if all(each.dtype.is_floating for each in of_one)
        for state in of_one
    ]
    if not states:
        return
    averages = oob_allreduce([each.value() for each in states], name="metrics", group=group)
    for variable, average in zip(states, averages, strict=True):
        variable.assign(average)
