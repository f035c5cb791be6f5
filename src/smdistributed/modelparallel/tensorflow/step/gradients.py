# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients in a step: taken with respect to all of the model's variables, on every rank.

A rank asks for those of its own variables alone. Yet the gradient of a variable of an early
partition goes through the later ones, so all ranks need the same graph. What nobody asks for is not
computed.

Source: TensorFlow modelparallel specification, sections 3.3, 3.4 and 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.graph.tracing import (
    Trace,
    current_trace,
    taking_gradients,
)
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.step.losses import Terms, sum_of_gradients
from smdistributed.modelparallel.tensorflow.updates.applying import note_trained_in_steps
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere, raw

__all__ = ["gradients_in_step", "gradients_of_all", "require_of_this_step", "trained_variables"]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def gradients_in_step(loss: Any, variables: Any) -> list[Any]:
    """The gradients of a loss in the step that is traced now.

    Args:
        loss: of this microbatch.
        variables: of either Keras, or other tensors of the step; one or several.

    Returns:
        A tensor, or `IndexedSlices`, for each; None where the loss does not depend on it. Those of
        variables of other ranks are marked in the trace: what the step returns of them is None.

    Raises:
        ValueError: the loss is of another microbatch, or of another step.
    """
    trace = current_trace()
    assert trace is not None
    for each in tf.nest.flatten(loss):
        if tf.is_tensor(each):
            require_of_this_step(trace, each, "get_gradients")
    asked = list(variables) if isinstance(variables, (list, tuple)) else [variables]
    wanted = [raw(each) if _is_variable(each) else each for each in asked]
    note_trained_in_steps(wanted)
    gradients = gradients_of_all(trace, loss, trained_variables(), wanted)
    for each, gradient in zip(asked, gradients, strict=True):
        if _is_variable(each) and is_elsewhere(each) and gradient is not None:
            trace.elsewhere.append(gradient)
    return gradients


def trained_variables() -> list[Any]:
    """The `tf.Variable`s of the whole model that are trained."""
    return [] if state.model is None else list(state.model._smp_all_trainable())


def gradients_of_all(
    trace: Trace, targets: Any, of_model: Sequence[Any], wanted: Sequence[Any], **options: Any
) -> list[Any]:
    """Gradients with respect to what is wanted, in a graph that does not depend on what that is.

    Args:
        trace: the step that is traced now.
        targets: tensors of its graph.
        of_model: trained variables, or their handles, of all ranks.
        wanted: some of these, or tensors.
        options: of `tf.gradients`.
    """
    sources = list({id(each): each for each in [*of_model, *wanted]}.values())
    losses = [each for each in tf.nest.flatten(targets) if tf.is_tensor(each)]
    divided = _divided(trace, losses, options)
    if divided is not None:
        targets = losses = [divided.common(each) for each in losses]
    trace.losses += losses
    found = taking_gradients(trace, lambda: tf.gradients(targets, sources, **options))
    by_id = {id(each): gradient for each, gradient in zip(sources, found, strict=True)}
    gradients = [by_id[id(each)] for each in wanted]
    if divided is None:
        return gradients
    own = divided.own()
    trace.own_terms.append(own)
    return _with_own(trace, gradients, divided, own, wanted, options)


def _divided(trace: Trace, losses: Sequence[tf.Tensor], options: dict[str, Any]) -> Terms | None:
    """The terms of losses that are divided; None if these are not, or are weighted each."""
    has_weights = any(each is not None for each in options.get("grad_ys") or ())
    if not trace.divides_losses or has_weights or state.model is None:
        return None
    variable_of = state.model._smp_variable_of
    ends = options.get("stop_gradients") or ()
    return Terms(trace, losses, lambda handle: variable_of(handle) is not None, ends)


def _with_own(
    trace: Trace,
    gradients: Sequence[Any],
    terms: Terms,
    own: Sequence[tf.Tensor],
    wanted: Sequence[Any],
    options: dict[str, Any],
) -> list[Any]:
    """Adds the gradients of the terms that are this rank's alone.

    Raises:
        ValueError: they depend on a variable that all ranks have, and train alike.
    """
    if not own:
        return list(gradients)
    options = {key: option for key, option in options.items() if key != "grad_ys"}
    found = taking_gradients(trace, lambda: tf.gradients(own, list(wanted), **options), is_own=True)
    for each, gradient in zip(wanted, found, strict=True):
        if gradient is not None and terms.is_shared(each):
            raise ValueError(
                f"A term of the loss depends on {getattr(each, 'name', each)}, which every rank"
                " has, and on some of model.trainable_variables, which are other ones on each rank;"
                " expected one of these, or its gradient would differ from rank to rank. Make the"
                " variable in the model, or use regularizers and model.losses."
            )
    return [sum_of_gradients(*each) for each in zip(gradients, found, strict=True)]


def require_of_this_step(trace: Trace, tensor: Any, caller: str) -> None:
    """Fails for a tensor that the step which is traced now has not made.

    Args:
        caller: what needs the gradient.

    Raises:
        ValueError: it comes from another microbatch, from another step, or from outside.
    """
    if isinstance(tensor, tf.__internal__.EagerTensor):
        what = f"a tensor that has its value already ({tensor.dtype.name}, shape {tensor.shape})"
    elif _is_within(tensor.graph, trace.graph):
        return
    else:
        what = f"a tensor of another graph ({tensor.name})"
    raise ValueError(
        f"{caller} in the step {trace.graph.name.removeprefix('smp_step_')} was asked for the"
        f" gradient of, or with respect to, {what}; expected one that this call of the function has"
        " made. The function is traced once for all microbatches: what it has kept of an earlier"
        " call, of another step, or has been given by neither an argument, is no part of it. Take"
        " gradients in the step that makes the value, and return them; .accumulate() of each is the"
        " mean over microbatches."
    )


def _is_within(graph: Any, outer: Any) -> bool:
    """Whether a graph is another one, or a body of a loop, branch or function in it."""
    while graph is not None and graph is not outer:
        graph = getattr(graph, "outer_graph", None)
    return graph is outer


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable) or hasattr(value, "_value")
