# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Keras' methods that train and use a model, of one whose parts are on several ranks.

All ranks of a pipeline call them, with the same data. Keras has the loop: it reads batches, calls
callbacks, keeps the history. Where it would call the model, or take gradients, a step runs.

Source: TensorFlow modelparallel specification, section 5.4.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.tensorflow.keras.logs import average_logs
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline
from smdistributed.modelparallel.tensorflow.training.batches import num_rows, require_divisible
from smdistributed.modelparallel.tensorflow.training.callbacks import (
    on_this_rank,
    require_savers_everywhere,
    savers_among,
)
from smdistributed.modelparallel.tensorflow.training.metrics import average_states
from smdistributed.modelparallel.tensorflow.training.shuffling import (
    seed_to_agree_on,
    shuffled_alike,
)
from smdistributed.modelparallel.tensorflow.training.steps import IS_LEGACY, ModelSteps, Trained
from smdistributed.modelparallel.tensorflow.training.together import end_of_data, together

__all__ = ["TrainedModel"]

# An argument of `compile` that Keras 3 has no more; its signature does not know it.
_DROPPED_BY_REMEDIES = ("experimental_run_tf_function",)

_CALLED_IN_TRAIN_STEP = (
    "{name}.train_step calls the model outside of a step; expected the call, the loss and its"
    " gradients in a function with @smp.step, as the model's parts are on several ranks. Write\n"
    "    @smp.step\n"
    "    def gradients_of(self, x, y):\n"
    "        outputs = self(x, training=True)\n"
    "        loss = self.compute_loss(x, y, outputs)\n"
    "        gradients = self.optimizer.get_gradients(loss, self.trainable_variables)\n"
    "        return loss, outputs, gradients\n"
    "    def train_step(self, data):\n"
    "        loss, outputs, gradients = self.gradients_of(*data)\n"
    "        gradients = [each.accumulate() for each in gradients]\n"
    "        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))\n"
    "        ...  # metrics as before, of loss.reduce_mean() and outputs.merge()\n"
    "or leave train_step out, and write compute_loss or compute_metrics instead."
)

_unpack = tf.keras.utils.unpack_x_y_sample_weight


class _Doing(enum.Enum):
    """Which of Keras' loops is under way."""

    NOTHING = enum.auto()
    TRAINING = enum.auto()
    USING = enum.auto()
    """`evaluate`, `predict` and the like: a call of the model is a step."""


class _Training:
    """What is known of the training of a model.

    Attributes:
        steps: of the model as it was compiled last; None until they are needed.
        doing: which loop is under way.
        has_begun: Keras has made what calls `train_step` in this loop.
        losses: that layers have added in the last call of the model in a loop that uses it.
    """

    def __init__(self) -> None:
        self.steps: ModelSteps | None = None
        self.doing = _Doing.NOTHING
        self.has_begun = False
        self.losses: list[Any] | None = None


class TrainedModel(tf.keras.Model):  # type: ignore[misc] # no types
    """A Keras model that Keras' own loops train, evaluate and use in steps."""

    # ---- compiling ---------------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """As of Keras; without XLA, which cannot compile what communicates."""
        original = super().compile
        signature = inspect.signature(original)
        dropped = {name: kwargs.pop(name) for name in _DROPPED_BY_REMEDIES if name in kwargs}
        bound = signature.bind(*args, **kwargs)
        asked = bound.arguments.get("jit_compile", signature.parameters["jit_compile"].default)
        if asked == "auto":
            asked = not bound.arguments.get("run_eagerly") and self._resolve_auto_jit_compile()
        if asked:
            get_logger().warning(
                "%s is not compiled by XLA (jit_compile is False): its steps communicate, and XLA"
                " cannot compile that.",
                type(self).__name__,
            )
        bound.arguments["jit_compile"] = False
        self._smp_training.steps = None
        return original(*bound.args, **bound.kwargs, **dropped)

    # ---- loops -------------------------------------------------------------------------------

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As of Keras, on all ranks of a pipeline, with the same data.

        Each batch is cut into microbatches. With replicas, gradients and what an epoch logs are
        averages over the replicas; each replica gets data of its own from the script.

        Raises:
            ValueError: a batch does not divide by the microbatches; at once, if that is known.
            NotImplementedError: a callback needs values of other ranks.
            SMDDPMismatch: another rank does something else.
            Exception: what a rank has raised, in a callback say, all others raise in other words.
        """
        signature = inspect.signature(super().fit)
        bound = signature.bind(x, y, *args, **kwargs)
        given = bound.arguments
        facts = _facts(given, "epochs", "batch_size")
        brings = seed_to_agree_on(), savers_among(given.get("callbacks"), state.job)
        with (
            self._smp_in("fit", _Doing.TRAINING, facts, brings) as brought,
            shuffled_alike([seed for seed, _ in brought]),
        ):
            require_savers_everywhere([savers for _, savers in brought], state.job)
            _require_divisible(given)
            given["callbacks"] = on_this_rank(given.get("callbacks"), self, state.job)
            return super().fit(*bound.args, **bound.kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As of Keras, on all ranks; a batch that does not divide is filled up, and cut again."""
        return self._smp_used("evaluate", super().evaluate, x, y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As of Keras, on all ranks; a batch that does not divide is filled up, and cut again."""
        return self._smp_used("predict", super().predict, x, *args, **kwargs)

    def train_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As of Keras, on all ranks of a pipeline, with the same data."""
        with self._smp_in("train_on_batch", _Doing.TRAINING, _facts({"x": x})):
            return super().train_on_batch(x, *args, **kwargs)

    def test_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As of Keras, on all ranks; a batch that does not divide is filled up, and cut again."""
        with self._smp_in("test_on_batch", _Doing.USING, _facts({"x": x})):
            return super().test_on_batch(x, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """As of Keras, on all ranks; a batch that does not divide is filled up, and cut again."""
        with self._smp_in("predict_on_batch", _Doing.USING, _facts({"x": x})):
            return super().predict_on_batch(x)

    def _smp_used(
        self, name: str, original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any
    ) -> Any:
        bound = inspect.signature(original).bind(x, *args, **kwargs)
        given = bound.arguments
        with self._smp_in(name, _Doing.USING, _facts(given, "batch_size", "steps")):
            given["callbacks"] = on_this_rank(given.get("callbacks"), self, state.job)
            return original(*bound.args, **bound.kwargs)

    @contextlib.contextmanager
    def _smp_in(
        self, method: str, doing: _Doing, facts: str, brings: Any = None
    ) -> Iterator[list[Any]]:
        """While it is open, all ranks of the pipeline are in this method."""
        training = self._smp_training
        before = training.doing, training.has_begun
        with together(current_pipeline(method), method, facts, brings) as brought:
            training.doing, training.has_begun = doing, False
            try:
                yield brought
            finally:
                training.doing, training.has_begun = before
                training.losses = None

    # ---- steps -------------------------------------------------------------------------------

    def train_step(self, data: Any) -> Any:
        """As of Keras: a batch, and what is logged of it."""
        x, y, sample_weight = _unpack(data)
        done = self._smp_steps().train(x, y, sample_weight)
        self._smp_apply(x, done)
        return self.compute_metrics(x, y, done.outputs, sample_weight=sample_weight)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _smp_apply(self, x: Any, done: Trained) -> None:
        """Updates this rank's variables, and the metric of the loss."""
        gradients, variables = done.gradients, self.trainable_variables
        if hasattr(self.optimizer, "get_unscaled_gradients"):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if not IS_LEGACY:  # in which the loss itself does this
            first = next(each for each in tf.nest.flatten(x) if each is not None)
            self._loss_tracker.update_state(done.loss, sample_weight=tf.shape(first)[0])

    @property
    def _smp_training(self) -> _Training:
        found: _Training | None = self.__dict__.get("_smp_training_state")
        if found is None:
            found = _Training()
            self.__dict__["_smp_training_state"] = found  # Keras must not track it
        return found

    def _smp_steps(self) -> ModelSteps:
        training = self._smp_training
        if training.steps is None:
            training.steps = ModelSteps(self)
        return training.steps

    @property
    def _smp_calls_are_steps(self) -> bool:
        """Whether a call of the model outside of a step is one by itself.

        Also before `fit` trains: with the first batch of a generator, whose other batches may have
        other shapes, tf-keras builds the model.
        """
        training = self._smp_training
        return training.doing is _Doing.USING or (
            training.doing is _Doing.TRAINING and not training.has_begun
        )

    def make_train_function(self, *args: Any, **kwargs: Any) -> Any:
        """As of Keras: what calls `train_step`, which `fit` asks for when it has looked at data."""
        self._smp_training.has_begun, self._smp_training.losses = True, None
        return super().make_train_function(*args, **kwargs)

    def _smp_refuse_call_in_training(self) -> None:
        """Fails where a `train_step` of the script's calls the model outside of a step."""
        is_ours = type(self).train_step is TrainedModel.train_step
        if self._smp_training.doing is _Doing.TRAINING and not is_ours:
            raise RuntimeError(_CALLED_IN_TRAIN_STEP.format(name=type(self).__name__))

    def _smp_call_in_step(self, args: Any, kwargs: Any) -> Any:
        called = self._smp_steps().call(args, kwargs)
        self._smp_training.losses = called.losses
        return called.outputs

    # ---- what Keras does in between ----------------------------------------------------------

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Of Keras 3, before the first batch: the partition is decided, from shapes."""
        is_ours = type(self).train_step is TrainedModel.train_step
        if self._smp_training.doing is not _Doing.TRAINING or not is_ours:
            return  # the first call of the model does that
        dataset = getattr(iterator, "_distributed_dataset", None)
        specs = _specs_of(data_batch) if dataset is None else _without_nothing(dataset.element_spec)
        if specs is None:
            return
        graph = tf.__internal__.FuncGraph("smp_build")
        with graph.as_default():
            data = tf.nest.map_structure(
                lambda spec: spec and tf.compat.v1.placeholder(spec.dtype, spec.shape), specs
            )
            self._smp_steps().train(*_unpack(data))
        variables = self.trainable_variables
        if variables and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(variables)

    def _symbolic_build(self, *_: Any, **__: Any) -> None:
        """Of Keras 3: nothing; it would give the optimizer variables of other ranks."""

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        """Of Keras 3: what a pass over the data logs."""
        return self._smp_end_of_data(super()._get_metrics_result_or_logs, logs)

    def _validate_and_get_metrics_result(self, logs: Any) -> Any:
        """Of tf-keras: what a pass over the data logs."""
        return self._smp_end_of_data(super()._validate_and_get_metrics_result, logs)

    def _smp_end_of_data(self, results: Callable[[Any], Any], logs: Any) -> Any:
        """Averages over the replicas, so that callbacks decide alike on all ranks."""
        end_of_data(current_pipeline("fit"))
        group = state.job.replica_group
        if group is None or group.size() == 1:
            return results(logs)
        average_states(self.metrics, group)
        found = results(logs)
        if isinstance(found, dict):
            found = dict(found)
            average_logs(found, group)
        return found


def _facts(given: dict[str, Any], *names: str) -> str:
    """Of a call, what must be the same on all ranks of a pipeline."""
    facts = [f"{num_rows(given[each])} rows" for each in ("x",) if num_rows(given.get(each))]
    return ", ".join([*facts, *(f"{each}={given[each]}" for each in names if each in given)])


def _require_divisible(given: dict[str, Any]) -> None:
    """Fails if it is known that batches of `fit` will not divide."""
    count = state.job.config.microbatches
    x, split = given.get("x"), given.get("validation_split") or 0.0
    validation = given.get("validation_data")
    batch_size, steps = given.get("batch_size"), given.get("steps_per_epoch")
    of_validation = {
        "batch_size": given.get("validation_batch_size") or batch_size,
        "steps": given.get("validation_steps"),
    }
    rows = num_rows(x)
    if split and validation is None and rows is not None:
        trained = int(rows * (1.0 - split))
        require_divisible(x, "validation_split", count, rows=rows - trained, **of_validation)
        rows = trained
    require_divisible(x, "x", count, batch_size=batch_size, steps=steps, rows=rows)
    if validation is not None:
        is_batches = isinstance(validation, tf.data.Dataset)
        data = validation if is_batches else _unpack(validation)[0] if isinstance(
            validation, (list, tuple)
        ) else None  # fmt: skip
        require_divisible(data, "validation_data", count, **of_validation)


def _specs_of(batch: Any) -> Any:
    """Of arrays; without the size of the batch, which may be another next time."""
    if batch is None:
        return None
    return tf.nest.map_structure(
        lambda each: None if each is None else tf.TensorSpec(each.shape, tf.as_dtype(each.dtype)),
        batch,
    )


def _without_nothing(specs: Any) -> Any:
    """Specs of batches, where None stands for what is not there; None if one is no tensor's."""
    specs = tf.nest.map_structure(
        lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec, specs
    )
    known = all(each is None or isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(specs))
    return specs if known else None
