# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Keras does with a whole model, and cannot do where parts of it are on other ranks.

With one partition all of it works as Keras has it. With several, what reads and writes all
variables is done by all ranks together (`checkpoints.keras_methods`): else it would take the part
that is here for the whole, without a word.

Source: TensorFlow modelparallel specification, sections 3.4 and 5.4; our choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.training.keras_model import TrainedModel
from smdistributed.modelparallel.tensorflow.variables import (
    is_elsewhere,
    tracing,
    without_values,
)

__all__ = ["WholeModel", "answer", "answer_of"]

# Methods of Keras that a room above has made for models with several partitions.
_GATHERED = (
    "export",
    "get_weights",
    "load_weights",
    "save",
    "save_weights",
    "set_weights",
)
# Before the decision they give values that count, and Keras does that alone.
_ALSO_BEFORE = ("load_weights", "set_weights")
_answers: dict[str, Callable[..., Any]] = {}


def answer(name: str, method: Callable[..., Any]) -> None:
    """Sets what a method of Keras does for a model whose parts are on several ranks.

    Args:
        name: of the method.
        method: takes the model, Keras' method, and the arguments.
    """
    _answers[name] = method


def answer_of(name: str) -> Callable[..., Any]:
    """What `answer` has set."""
    return _answers[name]


class WholeModel(TrainedModel):
    """A Keras model whose methods for the whole model know that it may be cut."""


def _building_without_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """`build` of tf-keras, which calls `call` itself, and not the model."""

    @functools.wraps(original)  # with the mark by which Keras knows that no user wrote it
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        with without_values(self._smp_book), tracing():
            return original(self, *args, **kwargs)

    return build


def _gathered(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_before = name in _ALSO_BEFORE and not self._smp_has_values()
        if is_before or self._smp_private.is_lent or not _spans_ranks(self):
            return original(self, *args, **kwargs)
        return _answers[name](self, functools.partial(original, self), *args, **kwargs)

    return method


def _is_cut(model: Any) -> bool:
    return any(is_elsewhere(each) for each in model.smp_all_variables)


def _spans_ranks(model: Any) -> bool:
    together = model._smp_private.is_of_all_ranks
    return state.job.config.partitions > 1 or together or _is_cut(model)


for _name in _GATHERED:
    _original = getattr(tf.keras.Model, _name, None)
    if _original is not None:
        setattr(WholeModel, _name, _gathered(_name, _original))

if tf.keras.Model.__module__.startswith("tf_keras"):
    WholeModel.build = _building_without_values(tf.keras.Model.build)
