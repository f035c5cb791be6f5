# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients in a step: taken with respect to all of the model's variables, on every rank.

A rank asks for those of its own variables alone. Yet the gradient of a variable of an early
partition goes through the later ones, so all ranks need the same graph. What nobody asks for is not
computed.

Source: TensorFlow modelparallel specification, sections 3.3, 3.4 and 6.2.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.tracing import (
    current_trace,
    taking_gradients,
)
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere, raw

__all__ = ["gradients_in_step"]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def gradients_in_step(loss: Any, variables: Any) -> list[Any]:
    """The gradients of a loss in the step that is traced now.

    Args:
        loss: of this microbatch.
        variables: of either Keras, or other tensors of the step; one or several.

    Returns:
        A tensor, or `IndexedSlices`, for each; None where the loss does not depend on it. Those of
        variables of other ranks are marked in the trace: what the step returns of them is None.
    """
    trace = current_trace()
    assert trace is not None
    asked = list(variables) if isinstance(variables, (list, tuple)) else [variables]
    wanted = [raw(each) if _is_variable(each) else each for each in asked]
    of_model = [] if state.model is None else state.model._smp_all_trainable()
    sources = list({id(each): each for each in [*of_model, *wanted]}.values())
    trace.losses += [each for each in tf.nest.flatten(loss) if tf.is_tensor(each)]
    found = taking_gradients(trace, lambda: tf.gradients(loss, sources))
    by_id = {id(each): gradient for each, gradient in zip(sources, found, strict=True)}
    gradients = [by_id[id(each)] for each in wanted]
    for each, gradient in zip(asked, gradients, strict=True):
        if _is_variable(each) and is_elsewhere(each) and gradient is not None:
            trace.elsewhere.append(gradient)
    return gradients


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable) or hasattr(value, "_value")
