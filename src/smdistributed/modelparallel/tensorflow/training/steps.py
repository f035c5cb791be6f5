# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The steps that methods of Keras run inside: one that trains, and one for a call of the model.

Source: TensorFlow modelparallel specification, sections 3.3 and 5.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.gradient_reduction import reduce_gradients
from smdistributed.modelparallel.tensorflow.containers.step_output import StepOutput
from smdistributed.modelparallel.tensorflow.graph.tracing import current_trace
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.step.step_function import step
from smdistributed.modelparallel.tensorflow.training.batches import filled_up
from smdistributed.modelparallel.tensorflow.variables import raw

__all__ = ["IS_LEGACY", "Called", "ModelSteps", "Trained"]

IS_LEGACY = tf.keras.Model.__module__.startswith("tf_keras")
"""Whether `tf.keras` is tf-keras."""

_MASK = "_keras_mask"  # the attribute of a tensor in which both Kerases have its mask


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a step that trains gives.

    Attributes:
        loss: a scalar, the mean over the microbatches.
        outputs: of the model, for the whole batch.
        gradients: of the trainable variables of this rank, averaged over microbatches and replicas.
    """

    loss: tf.Tensor
    outputs: Any
    gradients: list[Any]


@dataclasses.dataclass(frozen=True)
class Called:
    """What a call of the model in a step gives.

    Attributes:
        outputs: for the whole batch.
        losses: that layers have added, means over the microbatches.
    """

    outputs: Any
    losses: list[tf.Tensor]


class ModelSteps:
    """Of a model as it was compiled last."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._train = step(_training_step(model), autograph=IS_LEGACY)
        self._has_losses_of_data = False
        self._call = step(self._calling_step(model), autograph=IS_LEGACY)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def train(self, x: Any, y: Any, sample_weight: Any) -> Trained:
        """Forward and backward of a batch.

        Raises:
            ValueError: its size does not divide, or the loss is no mean over the batch.
            Exception: as of a step function.
        """
        loss, outputs, masks, gradients = self._train(x, y, sample_weight)
        averages = [None if each is None else each.accumulate() for each in gradients]
        return Trained(loss.reduce_mean(), _merged(outputs, masks), self._of_replicas(averages))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Called:
        """The model for a batch of any size.

        Raises:
            Exception: as of a step function.
        """
        count = state.job.config.microbatches
        filled = filled_up((list(args), dict(kwargs)), count)
        args, kwargs = filled.values
        outputs, masks, losses = self._call(*args, **kwargs)
        merged = _merged(outputs, masks, filled.cut)
        averages = [each.reduce_mean() for each in losses]
        if self._has_losses_of_data and filled.size is not None:
            averages = [_require_none_missing(each, filled.missing, count) for each in averages]
        return Called(merged, averages)

    def _of_replicas(self, gradients: list[Any]) -> list[Any]:
        """The gradients' averages over the replicas."""
        group = state.job.replica_group
        if group is None or group.size() == 1 or not gradients:
            return gradients
        variables = [raw(each) for each in self._model.trainable_variables]
        return reduce_gradients(gradients, variables=variables, sparse_as_dense=False, group=group)

    def _calling_step(self, model: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            outputs = model(*args, **kwargs)
            _require_metrics_outside(model)
            losses = list(model.losses)
            self._note_losses_of_data(losses)
            return outputs, _masks_of(outputs), losses

        call.__name__ = call.__qualname__ = f"{type(model).__name__}.call"
        return call

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _note_losses_of_data(self, losses: list[Any]) -> None:
        self._has_losses_of_data = any(_depends_on_arguments(each) for each in losses)


def _training_step(model: Any) -> Any:
    # Keras 3 asks whether `call` takes it, tf-keras leaves it out where it does not.
    training = {"training": True} if getattr(model, "_call_has_training_arg", True) else {}

    # Of Keras 3: passes on that this is training, to a `compute_loss` that takes it.
    compute_loss = getattr(model, "_compute_loss", model.compute_loss)

    def train_step(x: Any, y: Any, sample_weight: Any) -> Any:
        outputs = model(x, **training)
        _require_metrics_outside(model)
        loss = compute_loss(x, y, outputs, sample_weight)
        gradients = _gradients_of(model, y, loss, sample_weight)
        return loss, outputs, _masks_of(outputs), gradients

    train_step.__qualname__ = f"{type(model).__name__}.train_step"
    return train_step


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _gradients_of(model: Any, y: Any, loss: Any, sample_weight: Any) -> list[Any]:
    """Of this rank's variables; of the scaled loss, if the optimizer scales."""
    if IS_LEGACY:
        model._validate_target_and_loss(y, loss)
    _require_mean(model, loss, sample_weight)
    optimizer = model.optimizer
    if hasattr(optimizer, "get_scaled_loss"):
        loss = optimizer.get_scaled_loss(loss)
    elif hasattr(optimizer, "scale_loss"):
        loss = optimizer.scale_loss(loss)
    # Also on a rank without variables (those of its layers may be frozen): all trace the same.
    gradients: list[Any] = gradients_in_step(loss, list(model.trainable_variables))
    return gradients


def _require_mean(model: Any, loss: Any, sample_weight: Any) -> None:
    """A sum over a microbatch, averaged over microbatches, would be a part of that of the batch."""
    count = state.job.config.microbatches
    if count == 1:
        return
    reductions = _reductions(model)
    weighted = [name for name, reduction in reductions if reduction == "mean_with_sample_weight"]
    if weighted and sample_weight is not None:
        raise ValueError(
            f"fit(): the loss {weighted[0]} is divided by the sum of a batch's sample weights"
            f" (mean_with_sample_weight), and {count} microbatches, whose sums differ, make one;"
            " expected a mean over rows. Use reduction='sum_over_batch_size', with sample_weight or"
            " class_weight scaled so that its mean is 1."
        )
    sums = [name for name, reduction in reductions if reduction in ("sum", "none", None)]
    if not sums and loss.shape.rank in (0, None):
        return
    what = f"the loss {sums[0]} is not averaged over a batch" if sums else (
        f"the loss has shape {loss.shape}"
    )  # fmt: skip
    raise ValueError(
        f"fit(): {what}, and {count} microbatches make one; expected a scalar that is a mean over"
        " the batch, as the gradients of microbatches are averaged. Use"
        " reduction='sum_over_batch_size', and a greater learning rate if you need that."
    )


def _reductions(model: Any) -> list[tuple[str, Any]]:
    """Names and reductions of the losses that the model was compiled with."""
    if IS_LEGACY:
        losses = [] if model.compiled_loss is None else tf.nest.flatten(model.compiled_loss._losses)
    else:
        compiled = getattr(model, "_compile_loss", None)
        flat = getattr(compiled, "_flat_losses", None) or []
        losses = [each.loss for each in flat]
    return [(each.name, each.reduction) for each in losses if hasattr(each, "reduction")]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _require_metrics_outside(model: Any) -> None:
    """A metric that `call` updates would be updated on one rank alone."""
    if state.job.config.partitions == 1:
        return
    trace = current_trace()
    assert trace is not None
    captured = {id(external) for external, _ in trace.graph.captures}
    for metric in model.metrics:
        if any(id(raw(each).handle) in captured for each in metric.variables):
            raise ValueError(
                f"The metric {metric.name} is updated in `call`, which runs on the rank of one"
                " partition; expected metrics that all ranks update. Return what it measures from"
                " `call`, and give it to compile(metrics=...), or update it in compute_metrics()."
            )


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _depends_on_arguments(tensor: Any) -> bool:
    trace = current_trace()
    assert trace is not None
    arguments = {each.op for each in trace.arguments}
    waiting = [tensor.op] if hasattr(tensor, "op") else []
    seen = set(waiting)
    while waiting:
        operation = waiting.pop()
        if operation in arguments:
            return True
        new = {each.op for each in operation.inputs} - seen
        seen |= new
        waiting += new
    return False


def _require_none_missing(loss: tf.Tensor, missing: Any, count: int) -> tf.Tensor:
    check = tf.debugging.assert_equal(
        missing,
        0,
        f"The batch is not divisible by {count} microbatches, and layers add losses of their"
        " inputs (add_loss, activity_regularizer), in which the rows that fill it up would count;"
        " expected batches that divide. Choose batch_size and the number of rows so.",
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(loss)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _masks_of(outputs: Any) -> list[Any]:
    return [getattr(each, _MASK, None) for each in tf.nest.flatten(outputs)]


def _merged(outputs: Any, masks: list[Any], cut: Any = lambda output: output) -> Any:
    """Outputs of the whole batch, with their masks."""
    merged = []
    for output, mask in zip(tf.nest.flatten(outputs), masks, strict=True):
        if not isinstance(output, StepOutput):
            merged.append(output)
            continue
        if output[0].shape.rank == 0:
            raise ValueError(
                "An output of the model has no dimensions, and each microbatch makes one; expected"
                " outputs with a batch axis, which are put together along it. Return it with one"
                " (tf.repeat, or one value for each row)."
            )
        tensor = cut(output.concat())
        if isinstance(mask, StepOutput):
            setattr(tensor, _MASK, cut(mask.concat()))
        merged.append(tensor)
    return tf.nest.pack_sequence_as(outputs, merged)
