# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What Keras does with a whole model, and cannot do where parts of it are on other ranks.

With one partition all of it works as Keras has it. With several these say what to do instead: else
they would take the part that is here for the whole, without a word.

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

__all__ = ["WholeModel"]

_OWNER = (
    "the variables that are here, `model.variables`, on each rank: their numpy() and assign(), and"
    " smp.send() or smp.allgather() to bring values together"
)
_INSTEAD = {
    "get_weights": _OWNER,
    "save": _OWNER,
    "save_weights": _OWNER,
    "export": _OWNER,
}
# Before the decision they give values that count.
_ONLY_BEFORE = {
    "set_weights": "a call before the first step, or " + _OWNER,
    "load_weights": "a call before the first step, or " + _OWNER,
}


class WholeModel(TrainedModel):
    """A Keras model whose methods for the whole model know that it may be cut."""


def _building_without_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """`build` of tf-keras, which calls `call` itself, and not the model."""

    @functools.wraps(original)  # with the mark by which Keras knows that no user wrote it
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        with without_values(self._smp_book), tracing():
            return original(self, *args, **kwargs)

    return build


def _guarded(name: str, original: Callable[..., Any], *, only_before: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_cut = any(is_elsewhere(each) for each in self.smp_all_variables)
        if is_cut or (not only_before and state.job.config.partitions > 1):
            instead = _ONLY_BEFORE[name] if only_before else _INSTEAD[name]
            raise NotImplementedError(
                f"{type(self).__name__}.{name}() needs the whole model, of which other ranks have"
                f" parts; expected {instead}. For a model in one partition it works."
            )
        return original(self, *args, **kwargs)

    return method


for _name in (*_INSTEAD, *_ONLY_BEFORE):
    _original = getattr(tf.keras.Model, _name, None)
    if _original is not None:
        setattr(WholeModel, _name, _guarded(_name, _original, only_before=_name in _ONLY_BEFORE))

if tf.keras.Model.__module__.startswith("tf_keras"):
    WholeModel.build = _building_without_values(tf.keras.Model.build)
