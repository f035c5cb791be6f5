# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a script needs of the library, in one process of plain Keras: microbatches one by one.

To compare with. Nothing in here is the library's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

microbatches = 1
DistributedModel = tf.keras.Model


def init() -> None:
    """Does nothing."""


def rank() -> int:
    """Of one."""
    return 0


def partition(index: int) -> contextlib.AbstractContextManager[None]:
    """Does nothing."""
    return contextlib.nullcontext()


class _Output:
    def __init__(self, outputs: tuple[Any, ...]) -> None:
        self.outputs = outputs

    def reduce_mean(self) -> Any:
        return tf.add_n(self.outputs) / len(self.outputs)

    accumulate = reduce_mean


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cuts the batch; gathers what the function returns."""

    def each(*batch: Any) -> Any:
        cut = [tf.split(argument, microbatches) for argument in batch]
        return [function(*pieces) for pieces in zip(*cut, strict=True)]

    graph = tf.function(each)

    def call(*batch: Any) -> Any:
        found = (graph if tf.executing_eagerly() else each)(*batch)
        return tf.nest.map_structure(lambda *outputs: _Output(outputs), *found)

    return call


def _get_gradients(self: Any, loss: Any, variables: Any) -> Any:
    return tf.gradients(loss, [_raw(each) for each in variables])


def _raw(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else variable.value


def _reset_states(self: Any) -> None:
    self.reset_state()


tf.keras.optimizers.Optimizer.get_gradients = _get_gradients
if not hasattr(tf.keras.metrics.Metric, "reset_states"):
    tf.keras.metrics.Metric.reset_states = _reset_states
